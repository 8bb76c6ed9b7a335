//! The errands of a member that wait for a disk or a registry: its private file, and the volume's
//! record. For a thread that may wait.

use std::io;
use std::path::{Path, PathBuf};

use registry::membership::{ClusterKeys, HeldPlacement, HeldVolume, Membership};
use registry::{Registry, RegistryError, Swap, private_file, store_text};
use replica::wire::{decode_durable, decode_formed_record, encode_durable, encode_record};
use replica::{Durable, MemberId, RecoveryPlan, SwapOutcome, VolumeRecord};

use crate::form::VolumeForm;

/// How often a change of a record is tried again while the placement of the volume changes: the
/// steps of a placement are seconds apart.
const TRIES_MAX: usize = 4;

/// Why a member's private file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateFileError {
    /// The system refused.
    #[error("the file of a member's state, {path}: {source}")]
    System {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        r#source: io::Error,
    },
    /// The file has no state that a member has kept. Without it the member's promises are
    /// forgotten.
    #[error(
        "{path}: {reason}. The member may have promised what is not known any more, so it must not \
         serve: remove the member from the volume, then the file, and add the member anew"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
}

/// The private file of a member: the state that it must remember.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
}

impl StateFile {
    /// The file at this path, which need not be there.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// The state that was kept last; none of a new member, which has no file.
    ///
    /// # Errors
    /// [`StateFileError`]
    pub fn load(&self) -> Result<Option<Durable>, StateFileError> {
        let bytes = match private_file::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(StateFileError::System { path: self.path.clone(), source });
            }
        };
        decode_durable(&bytes).map(Some).map_err(|error| StateFileError::Damaged {
            path: self.path.clone(),
            reason: error.to_string(),
        })
    }

    /// Makes a state durable.
    ///
    /// # Errors
    /// [`StateFileError`]: the old state is there, or the new one.
    pub fn keep(&self, durable: &Durable) -> Result<(), StateFileError> {
        private_file::replace(&self.path, &encode_durable(durable))
            .map_err(|source| StateFileError::System { path: self.path.clone(), source })
    }
}

/// Why there is no record to be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordDeskError {
    /// The registry does not answer, or has a damaged record.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// Another reason why there is no answer.
    #[error("{0}")]
    NoAnswer(String),
    /// The record is of members of another form: their numbers mean other nodes, or their copies
    /// have other bytes.
    #[error("the record was made for another list of nodes, another size, sharing or encryption")]
    OtherForm,
    /// The registry does not have the placement of a volume that the cluster has placed, or this
    /// copy is not in it.
    #[error(
        "the registry does not have the placement of the volume, or the copy here is not in it: \
         restore the registry from a backup that has it"
    )]
    NotPlaced,
    /// A node has a copy by the placement, and the member's own list does not have it.
    #[error(
        "node {0:?} has a copy of the volume and was not asked: this node has an older list of the \
         volume's nodes. Run the command again when it has the newer one; with --force that node \
         must be away"
    )]
    NotAsked(String),
    /// Members have gone on by another record since the registry was restored.
    #[error(
        "the registry has another record of the volume, of epoch {0}, which no copy that has \
         answered knows as the newest: copies that have not answered may serve by it. Have all \
         nodes with copies started, and run the command again; it then takes that record's place"
    )]
    OtherHistory(u64),
    /// The registry was restored since the record was written. A member may know a newer record,
    /// and a member that does not must not take the volume over.
    #[error(
        "the registry was restored since the record of the volume was written, so members may know \
         newer ones: `vrio volume recover` on each node with a copy says which copy has them, and \
         has it serve; if none knows a newer record, `vrio cluster trust --volumes` does it for \
         all volumes"
    )]
    PutBack,
}

/// The record of one volume in the registry, for a thread that may wait some seconds.
pub trait VolumeRecords: Send {
    /// The record; none if the registry says that there is no record.
    ///
    /// # Errors
    /// [`RecordDeskError`]
    fn look(&mut self) -> Result<Option<VolumeRecord>, RecordDeskError>;

    /// Puts the first record there.
    ///
    /// # Errors
    /// When there is another record, or no answer.
    fn create(&mut self, first: &VolumeRecord) -> Result<(), RecordDeskError>;

    /// Replaces the record by the next one.
    fn swap(&mut self, target: &VolumeRecord) -> SwapOutcome;

    /// Makes the record anew by an operator's plan: in place of the known record, of an older one,
    /// or of none.
    ///
    /// # Errors
    /// Why this try has changed nothing, and will change nothing.
    fn remake(&mut self, plan: &RecoveryPlan) -> Result<SwapOutcome, RecordDeskError>;
}

impl VolumeRecords for Box<dyn VolumeRecords> {
    fn look(&mut self) -> Result<Option<VolumeRecord>, RecordDeskError> {
        (**self).look()
    }

    fn create(&mut self, first: &VolumeRecord) -> Result<(), RecordDeskError> {
        (**self).create(first)
    }

    fn swap(&mut self, target: &VolumeRecord) -> SwapOutcome {
        (**self).swap(target)
    }

    fn remake(&mut self, plan: &RecoveryPlan) -> Result<SwapOutcome, RecordDeskError> {
        (**self).remake(plan)
    }
}

/// The record of one volume in a registry that this process reaches itself.
pub struct RegistryRecords {
    /// The record's place.
    pub desk: RecordDesk,
    /// The registry.
    pub registry: Box<dyn Registry + Send>,
}

impl std::fmt::Debug for RegistryRecords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegistryRecords").field("desk", &self.desk).finish_non_exhaustive()
    }
}

impl VolumeRecords for RegistryRecords {
    fn look(&mut self) -> Result<Option<VolumeRecord>, RecordDeskError> {
        self.desk.find(&mut *self.registry)
    }

    fn create(&mut self, first: &VolumeRecord) -> Result<(), RecordDeskError> {
        self.desk.create(&mut *self.registry, first)
    }

    fn swap(&mut self, target: &VolumeRecord) -> SwapOutcome {
        self.desk.swap(&mut *self.registry, target)
    }

    fn remake(&mut self, plan: &RecoveryPlan) -> Result<SwapOutcome, RecordDeskError> {
        let members = (plan.heard.as_deref(), &plan.unheard[..]);
        self.desk.remake(&mut *self.registry, (&plan.known, &plan.record), members)
    }
}

/// The record of one volume in a registry, with the form of the volume before it.
#[derive(Debug)]
pub struct RecordDesk {
    keys: ClusterKeys,
    volume: String,
    form: VolumeForm,
    /// The nodes with copies, in their order, for people.
    nodes: Vec<String>,
    /// The cluster has placed the volume.
    is_placed: bool,
    /// Seconds since 1970, now.
    now_s: fn() -> u64,
}

impl RecordDesk {
    /// The record of this volume in the cluster with these keys.
    pub fn new(keys: ClusterKeys, volume: &str, form: VolumeForm) -> Self {
        let (volume, nodes) = (volume.to_owned(), Vec::new());
        Self { keys, volume, form, nodes, is_placed: false, now_s: || 0 }
    }

    /// The desk with the names of the nodes, in their order, and a clock: records name the nodes
    /// whose copies lack writes, and since when.
    #[must_use]
    pub fn with_nodes(mut self, nodes: Vec<String>, now_s: fn() -> u64) -> Self {
        (self.nodes, self.now_s) = (nodes, now_s);
        self
    }

    /// The desk of a volume that the cluster has placed, or not: such a volume has a record only
    /// beside its placement.
    #[must_use]
    pub fn placed(self, is_placed: bool) -> Self {
        Self { is_placed, ..self }
    }

    fn held(&self, registry: &mut dyn Registry) -> Result<Option<HeldVolume>, RecordDeskError> {
        Ok(Membership::new(registry, &self.keys).volume(&self.volume)?)
    }

    /// The record; none if there is none.
    ///
    /// # Errors
    /// When the registry does not answer, or has a damaged record.
    pub fn find(
        &self,
        registry: &mut dyn Registry,
    ) -> Result<Option<VolumeRecord>, RecordDeskError> {
        self.held(registry)?.map(|held| self.record(&held)).transpose()
    }

    /// The record.
    ///
    /// # Errors
    /// As [`Self::find`], and when there is no record.
    pub fn look(&self, registry: &mut dyn Registry) -> Result<VolumeRecord, RecordDeskError> {
        let found = self.find(registry)?;
        found.ok_or_else(|| self.damaged("there is no record of the volume"))
    }

    fn record(&self, held: &HeldVolume) -> Result<VolumeRecord, RecordDeskError> {
        let (form, record) = decode_formed_record(&held.record.content)
            .map_err(|error| self.damaged(&error.to_string()))?;
        if held.record.was_put_back(held.store) {
            return Err(RecordDeskError::PutBack);
        }
        if VolumeForm(form) != self.form {
            return Err(RecordDeskError::OtherForm);
        }
        if record.epoch == held.record.epoch {
            return Ok(record);
        }
        Err(self.damaged("its epochs differ"))
    }

    fn damaged(&self, reason: &str) -> RecordDeskError {
        let place = format!("the record of the replicated volume {:?}", self.volume);
        RegistryError::Damaged { place, reason: reason.to_owned() }.into()
    }

    /// Puts the first record of a volume into the registry.
    ///
    /// # Errors
    /// When the registry does not answer, or there is a record.
    pub fn create(
        &self,
        registry: &mut dyn Registry,
        first: &VolumeRecord,
    ) -> Result<(), RecordDeskError> {
        let store = registry.stamp()?.store;
        let placed = Membership::new(registry, &self.keys).placement(&self.volume)?;
        let swap = self.next((None, placed.as_ref()), store, first)?;
        match registry.swap(&swap)? {
            registry::SwapOutcome::Made { .. } => Ok(()),
            _ => match self.look(registry)? {
                found if found == *first => Ok(()),
                _ => Err(self.damaged("there is another record of the volume")),
            },
        }
    }

    fn next(
        &self,
        (held, placed): (Option<&HeldVolume>, Option<&HeldPlacement>),
        store: u64,
        next: &VolumeRecord,
    ) -> Result<Swap, RecordDeskError> {
        let content = [&self.form.0[..], &encode_record(next)].concat();
        // A node's own list may be older than the placement.
        let nodes = placed.map_or_else(|| self.nodes.clone(), |it| it.record.nodes());
        let now_s = (self.now_s)();
        let lacked = held.map(|held| &held.record.lacking);
        let lacks = (0..).zip(&nodes).filter(|(id, _)| !next.in_sync.contains_key(id));
        let lacks = lacks.filter(|(_, node)| !node.is_empty());
        let since_s = |node: &String| lacked.and_then(|it| it.get(node).copied()).unwrap_or(now_s);
        let lacking = lacks.map(|(_, node)| (node.clone(), since_s(node))).collect();
        let (epoch, store) = (next.epoch, store_text(store));
        let stored = registry::VolumeRecord { epoch, content, nodes, lacking, store };
        let swap = self.keys.with_placement(Swap::new(), &self.volume, placed)?;
        Ok(self.keys.next_volume(swap, &self.volume, held, &stored)?)
    }

    /// Makes the record anew: in place of the known record, of an older one, or of none. The nodes
    /// of the members that were not heard must be away, also of members that only the placement
    /// has: a process with such a member could go on. No `heard`: no other member matters.
    ///
    /// # Errors
    /// Why this try has changed nothing, and will change nothing.
    pub fn remake(
        &self,
        registry: &mut dyn Registry,
        (known, record): (&VolumeRecord, &VolumeRecord),
        (heard, unheard): (Option<&[MemberId]>, &[MemberId]),
    ) -> Result<SwapOutcome, RecordDeskError> {
        let store = registry.stamp()?.store;
        let mut membership = Membership::new(registry, &self.keys);
        let held = membership.volume(&self.volume)?;
        let placed = membership.placement(&self.volume)?;
        if let Some(held) = &held {
            let (form, found) = decode_formed_record(&held.record.content)
                .map_err(|error| self.damaged(&error.to_string()))?;
            if VolumeForm(form) != self.form {
                return Err(RecordDeskError::OtherForm);
            }
            if found == *record {
                return Ok(SwapOutcome::Done);
            }
            if found.epoch > known.epoch {
                return Ok(SwapOutcome::Conflict(found));
            }
            // An older record of this registry is of a restore before, or of a copy that was made
            // anew. If all members have answered, none goes on by it: the plan looks for that.
            let all_answered = heard.is_some() && unheard.is_empty();
            if found != *known && !held.record.was_put_back(held.store) && !all_answered {
                return Err(RecordDeskError::OtherHistory(found.epoch));
            }
        }
        let nodes = placed.as_ref().map_or_else(|| self.nodes.clone(), |it| it.record.nodes());
        let name = |id: &MemberId| nodes.get(usize::from(*id)).filter(|name| !name.is_empty());
        let is_unknown = record.in_sync.keys().any(|id| name(id).is_none());
        if is_unknown || self.is_placed && placed.is_none() {
            return Err(RecordDeskError::NotPlaced);
        }
        let swap = self.next((held.as_ref(), placed.as_ref()), store, record)?;
        let is_asked =
            |id: &MemberId| heard.is_none_or(|heard| heard.contains(id)) || unheard.contains(id);
        let listed = (0..=MemberId::MAX).take(nodes.len()).filter(|id| !is_asked(id));
        let listed: Vec<_> = listed.filter_map(|id| name(&id).cloned()).collect();
        if let Some(node) = listed.first().filter(|_| unheard.is_empty()) {
            return Err(RecordDeskError::NotAsked(node.clone()));
        }
        let away: Vec<_> = unheard.iter().filter_map(name).cloned().chain(listed).collect();
        let swap = Membership::new(registry, &self.keys).with_nodes_away(swap, &away)?;
        match registry.swap(&swap) {
            Ok(registry::SwapOutcome::Made { .. }) => Ok(SwapOutcome::Done),
            // The change may come late.
            Ok(registry::SwapOutcome::Unknown { .. })
            | Err(RegistryError::OutcomeUnknown { .. }) => Ok(SwapOutcome::Unknown),
            Err(error) => Err(error.into()),
            Ok(registry::SwapOutcome::Lost) => {
                let text = "the registry has changed meanwhile: run the command again";
                Err(RecordDeskError::NoAnswer(text.to_owned()))
            }
        }
    }

    /// Replaces the record by the next one, if the registry still has the record before.
    ///
    /// An error of the registry is an unknown outcome: the protocol asks again, and finds the
    /// record as it wants it if an earlier try was carried out.
    pub fn swap(&self, registry: &mut dyn Registry, target: &VolumeRecord) -> SwapOutcome {
        self.try_swap(registry, target).unwrap_or(SwapOutcome::Unknown)
    }

    fn try_swap(
        &self,
        registry: &mut dyn Registry,
        target: &VolumeRecord,
    ) -> Result<SwapOutcome, RecordDeskError> {
        let held = self.held(registry)?;
        let Some(held) = held else { return Ok(SwapOutcome::Unknown) };
        let found = self.record(&held)?;
        if found == *target {
            return Ok(SwapOutcome::Done);
        }
        if !target.follows(&found) {
            return Ok(SwapOutcome::Conflict(found));
        }
        for _ in 0..TRIES_MAX {
            let placed = Membership::new(registry, &self.keys).placement(&self.volume)?;
            let is_out = |id: &u8| {
                let members = placed.as_ref().map(|it| it.record.members());
                members.is_some_and(|mut all| all.all(|(place, _)| place != *id))
            };
            // A copy that is smaller than the volume cannot have each write.
            let is_small = |id: &u8| {
                let is_new = found.in_sync.get(id) != target.in_sync.get(id);
                is_new && placed.as_ref().is_some_and(|it| it.record.is_small(*id))
            };
            // The node of a copy that is out removes its data, so the copy must not count again.
            if target.in_sync.keys().any(|id| is_out(id) || is_small(id)) {
                return Ok(SwapOutcome::Conflict(found));
            }
            let swap = self.next((Some(&held), placed.as_ref()), held.store, target)?;
            match registry.swap(&swap)? {
                registry::SwapOutcome::Made { .. } => return Ok(SwapOutcome::Done),
                registry::SwapOutcome::Unknown { .. } => return Ok(SwapOutcome::Unknown),
                // Perhaps the placement alone has changed.
                registry::SwapOutcome::Lost => match self.look(registry)? {
                    record if record == found => {}
                    record => return Ok(SwapOutcome::Conflict(record)),
                },
            }
        }
        Ok(SwapOutcome::Unknown)
    }
}
