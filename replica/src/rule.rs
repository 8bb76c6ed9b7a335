//! The rules of the protocol that tests break, one at a time.

/// A rule whose breach loses data or serves old data. A member keeps all of them; a test may have
/// one broken, to see that the breach is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A write waits for a silent backup until the record without it is in the registry.
    SwapBeforeAcknowledging,
    /// A member that promised an epoch hears no older one.
    KeepPromises,
    /// A new primary makes the tails of all members equal before it serves.
    EqualTails,
    /// A record that is older than the known one is no news.
    NewerRecordsOnly,
    /// A new primary numbers operations under its own reign.
    NumbersOfOneReign,
    /// A member that was restarted is not in sync.
    RestartIsLoss,
    /// A member that is not in sync waits for a primary.
    OnlyMembersInSyncServe,
    /// A read waits until all members in sync have what it returns.
    ReadsWaitForBackups,
    /// A read is answered only under unexpired leases.
    ReadsNeedLeases,
    /// A lease counts from the time at which the primary asked for it.
    LeasesCountFromSending,
    /// A request that is sent again is applied once.
    RequestsOnce,
    /// A swap whose outcome is unknown may have happened.
    UnknownSwapsMayHaveHappened,
    /// Epochs of the registry never go back.
    RegistryNeverGoesBack,
    /// Operations and their answers count for the attempt to join that they were sent in.
    AnswersOfOneAdmission,
    /// An order to go back is obeyed once: an old one would undo an admission.
    AdmissionsAreNotUndone,
    /// A member is admitted when it has each operation that was acknowledged.
    AdmittedWithAll,
    /// Blocks that a member was given to join may be more than other members have.
    FillsAreTail,
    /// A member says its life to each question anew.
    LivesOnRequest,
    /// A primary that has asked for another primary answers no read.
    MovedPrimariesAreSilent,
    /// A member that was restarted lets the leases run out that its last life gave.
    RestartsLetLeasesEnd,
    /// A member that joins gets the volume's note.
    NotesComeWithAdmission,
    /// A member keeps the end of its life when its content is durable, and not before.
    EndsAreDurable,
    /// The end of a life is good for one start.
    EndsAreUsedOnce,
    /// A member that goes on with its life has no part in the reign in which it ended.
    ResumedMembersReignAnew,
    /// A member that goes on with its life becomes the primary by the registry's answers to its own
    /// process alone: a record that was told may be of before an operator's.
    ResumedMembersAskAnew,
    /// The proved end of a process ends the leases of the life that it had, and of no other.
    ProofsAreOfOneLife,
    /// The end of a process proves nothing about a life that its next process goes on with.
    LivesThatGoOnAreNotOver,
    /// A primary refuses requests of older incarnations. A request of a newer one says that its
    /// reign is over, and that another member may carry the request out.
    RefusalsAreOfThePast,
    /// A record that an operator has made has a newer epoch than all that members know.
    RecoveredEpochsAreNew,
    /// A member that an operator's record makes the primary, although it has not asked for it or
    /// does not know that any more, lets the leases end that it has given since.
    RemadeReignsLetLeasesEnd,
    /// A member that the registry may still tell of a record which it has asked for is not heard:
    /// it would become the primary of a record of before.
    AttemptsAreUnheard,
    /// A primary of an older record that needs no member which has gone on without it may go on.
    OlderPrimariesMayGoOn,
    /// Of older copies the copy that was in sync by the newer record has more.
    OlderCopiesByEpoch,
    /// A copy that is being filled is marked, and does not serve while another copy can.
    FillsAreMarked,
    /// A member that joins takes no snapshot: its content is not the primary's yet.
    JoinsTakeNoSnapshots,
    /// Content that a member has lent is of no use once an operation has changed its sectors.
    MendsAreOfNow,
    /// A member is asked for content when it has all operations on it.
    MendsWaitForOperations,
    /// Proofs of a block are of no use once an operation has changed it.
    ProofsAreOfNow,
    /// Content that repairs other copies is of no use once an operation has changed the block.
    RepairsAreOfNow,
    /// A member that takes over before it has all that makes it equal to a primary of before goes
    /// back to its own content.
    HalfEqualMembersGoBack,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 40] = [
        Self::SwapBeforeAcknowledging,
        Self::KeepPromises,
        Self::EqualTails,
        Self::NewerRecordsOnly,
        Self::NumbersOfOneReign,
        Self::RestartIsLoss,
        Self::OnlyMembersInSyncServe,
        Self::ReadsWaitForBackups,
        Self::ReadsNeedLeases,
        Self::LeasesCountFromSending,
        Self::RequestsOnce,
        Self::UnknownSwapsMayHaveHappened,
        Self::RegistryNeverGoesBack,
        Self::AnswersOfOneAdmission,
        Self::AdmissionsAreNotUndone,
        Self::AdmittedWithAll,
        Self::FillsAreTail,
        Self::LivesOnRequest,
        Self::MovedPrimariesAreSilent,
        Self::RestartsLetLeasesEnd,
        Self::NotesComeWithAdmission,
        Self::EndsAreDurable,
        Self::EndsAreUsedOnce,
        Self::ResumedMembersReignAnew,
        Self::ResumedMembersAskAnew,
        Self::ProofsAreOfOneLife,
        Self::LivesThatGoOnAreNotOver,
        Self::RefusalsAreOfThePast,
        Self::RecoveredEpochsAreNew,
        Self::RemadeReignsLetLeasesEnd,
        Self::AttemptsAreUnheard,
        Self::OlderPrimariesMayGoOn,
        Self::OlderCopiesByEpoch,
        Self::FillsAreMarked,
        Self::JoinsTakeNoSnapshots,
        Self::MendsAreOfNow,
        Self::MendsWaitForOperations,
        Self::ProofsAreOfNow,
        Self::RepairsAreOfNow,
        Self::HalfEqualMembersGoBack,
    ];
}
