//! The ways of other members' messages to a volume's member on this node: the planes of sessions,
//! on any sidecore, put them into mailboxes, and the member's host takes them out.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use replica::wire::WireContent;
use replica::{MemberId, Message};
use sidecore::Waker;
use sidecore::mailbox::{self, Full, Receiver, Sender};

use crate::form::VolumeForm;

/// Messages that wait in the mailbox of one plane: a few rounds of a member under load.
pub const DOOR_MESSAGES_MAX: usize = 256;

/// Bytes of content of these messages. A message is taken while there are fewer, so that a message
/// of the largest size always gets in.
pub const DOOR_BYTES_MAX: usize = 32 << 20;

/// A message of another member, on its way to its volume's member on this node.
#[derive(Debug, PartialEq, Eq)]
pub struct ArrivedMessage {
    /// The member that sent it, as its session's key says.
    pub from: MemberId,
    /// The message.
    pub message: Message<WireContent>,
    /// The content of the range that it has, if it has one with bytes.
    pub body: Vec<u8>,
}

/// The members of this node by their volumes, for the planes of all sidecores.
#[derive(Debug, Default)]
pub struct MemberDoors {
    doors: Mutex<BTreeMap<String, Arc<MemberDoor>>>,
    generation: AtomicU64,
}

impl MemberDoors {
    /// No members.
    pub fn new() -> Self {
        Self::default()
    }

    /// Changes with each member that comes or goes: a plane that keeps doors looks them up again.
    pub fn generation(&self) -> u64 {
        self.generation.load(SeqCst)
    }

    /// The way to the member of this volume.
    pub fn door(&self, volume: &str) -> Option<Arc<MemberDoor>> {
        self.lock().get(volume).cloned()
    }

    /// A member of this volume has come, in place of an earlier one.
    pub fn insert(&self, volume: &str, door: Arc<MemberDoor>) {
        self.lock().insert(volume.to_owned(), door);
        self.generation.fetch_add(1, SeqCst);
    }

    /// A door has other peers: planes look again which of their peers may say something.
    pub fn look_again(&self) {
        self.generation.fetch_add(1, SeqCst);
    }

    /// The member of this volume has gone.
    pub fn remove(&self, volume: &str) {
        self.lock().remove(volume);
        self.generation.fetch_add(1, SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<MemberDoor>>> {
        // A map is whole after each of its calls, also if a thread ended in between.
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way to one member.
pub struct MemberDoor {
    /// Looked at when a volume is named in a session, and not for each message.
    peers: Mutex<BTreeMap<String, MemberId>>,
    form: VolumeForm,
    waker: Waker,
    /// Ends of mailboxes that the host has not taken yet; none once the host is gone.
    fresh: Mutex<Option<Vec<DoorReceiver>>>,
    has_fresh: AtomicBool,
}

impl MemberDoor {
    /// The way to a member: its host is on the sidecore of `waker`. `peers` are the nodes that
    /// have the other copies of the volume, by their names; `form` is the volume's form here.
    pub fn new(peers: BTreeMap<String, MemberId>, form: VolumeForm, waker: Waker) -> Arc<Self> {
        let (fresh, has_fresh) = (Mutex::new(Some(Vec::new())), AtomicBool::new(false));
        Arc::new(Self { peers: Mutex::new(peers), form, waker, fresh, has_fresh })
    }

    /// The nodes with the other copies are these from now on. The planes see it when they look
    /// again ([`MemberDoors::look_again`]).
    pub fn set_peers(&self, peers: BTreeMap<String, MemberId>) {
        *self.peers() = peers;
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<String, MemberId>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The volume's form here. A member of another form says nothing to this member.
    pub fn form(&self) -> VolumeForm {
        self.form
    }

    /// The member that a peer is, by the name that its key has here. A peer without a copy of the
    /// volume is none, and may say nothing about it.
    pub fn member(&self, peer: &str) -> Option<MemberId> {
        self.peers().get(peer).copied()
    }

    /// A mailbox of its own for the plane of one sidecore, which `waker` wakes when there is room
    /// again. A plane connects once to a door.
    pub fn connect(&self, waker: Waker) -> DoorSender {
        let (sender, messages) = mailbox::channel(DOOR_MESSAGES_MAX, self.waker.clone());
        let shared = Arc::new(DoorShared { bytes: AtomicUsize::new(0), refused: false.into() });
        let receiver = DoorReceiver { messages, shared: Arc::clone(&shared), waker };
        if let Some(fresh) = &mut *self.fresh() {
            fresh.push(receiver);
            self.has_fresh.store(true, SeqCst);
        }
        DoorSender { messages: sender, shared }
    }

    fn fresh(&self) -> MutexGuard<'_, Option<Vec<DoorReceiver>>> {
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for MemberDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemberDoor").field("peers", &*self.peers()).finish_non_exhaustive()
    }
}

/// The state that both ends of a mailbox share.
#[derive(Debug)]
struct DoorShared {
    /// Bytes of content that are in the mailbox.
    bytes: AtomicUsize,
    /// The sender was refused, and waits for room.
    refused: AtomicBool,
}

/// The plane's end of a mailbox.
#[derive(Debug)]
pub struct DoorSender {
    messages: Sender<ArrivedMessage>,
    shared: Arc<DoorShared>,
}

impl DoorSender {
    /// Puts a message in and wakes the member's host.
    ///
    /// # Errors
    /// Gives the message back when the mailbox is full. The plane's sidecore is woken when it has
    /// room again.
    #[expect(clippy::result_large_err, reason = "a message that is given back is only moved")]
    pub fn send(&mut self, message: ArrivedMessage) -> Result<(), Full<ArrivedMessage>> {
        let Err(Full(message)) = self.try_send(message) else { return Ok(()) };
        self.shared.refused.store(true, SeqCst);
        // The host may have made room just before it could see that a plane waits for it.
        fence(SeqCst);
        self.try_send(message)
    }

    #[expect(clippy::result_large_err, reason = "a message that is given back is only moved")]
    fn try_send(&mut self, message: ArrivedMessage) -> Result<(), Full<ArrivedMessage>> {
        if self.shared.bytes.load(SeqCst) >= DOOR_BYTES_MAX {
            return Err(Full(message));
        }
        let bytes = message.body.len();
        // Before the message is in: the host takes off only what was put on.
        self.shared.bytes.fetch_add(bytes, SeqCst);
        let sent = self.messages.send(message);
        if sent.is_err() {
            self.shared.bytes.fetch_sub(bytes, SeqCst);
        }
        sent
    }

    /// The member is gone: a message would never be heard.
    pub fn is_abandoned(&self) -> bool {
        self.messages.is_abandoned()
    }
}

/// The host's end of a mailbox.
struct DoorReceiver {
    messages: Receiver<ArrivedMessage>,
    shared: Arc<DoorShared>,
    /// Of the plane's sidecore.
    waker: Waker,
}

impl DoorReceiver {
    fn receive(&mut self) -> Option<ArrivedMessage> {
        let message = self.messages.receive()?;
        self.shared.bytes.fetch_sub(message.body.len(), SeqCst);
        Some(message)
    }

    /// Wakes the plane if it waits for room.
    fn tell_room(&self) {
        fence(SeqCst);
        if self.shared.refused.swap(false, SeqCst) {
            self.waker.wake();
        }
    }
}

/// The host's ends of all mailboxes of one door.
pub struct DoorInbox {
    door: Arc<MemberDoor>,
    receivers: Vec<DoorReceiver>,
    /// The mailbox that is looked at first: the next one each time, so that none starves.
    first: usize,
}

impl DoorInbox {
    /// The inbox of the host behind this door. A door has one.
    pub fn new(door: Arc<MemberDoor>) -> Self {
        Self { door, receivers: Vec::new(), first: 0 }
    }

    /// Takes messages until `into` has `most`, or `bytes_most` bytes of content at least.
    pub fn take(&mut self, most: usize, bytes_most: usize, into: &mut Vec<ArrivedMessage>) {
        if self.door.has_fresh.swap(false, SeqCst) {
            self.receivers.extend(self.door.fresh().iter_mut().flat_map(|fresh| fresh.drain(..)));
        }
        // Only here mailboxes go, so a plane that has ended loses none of its messages.
        self.receivers.retain(|end| !end.messages.is_abandoned() || !end.messages.is_empty());
        let count = self.receivers.len();
        let mut bytes = 0;
        for at in 0..count {
            let receiver = &mut self.receivers[(self.first + at) % count];
            let before = into.len();
            while into.len() < most
                && bytes < bytes_most
                && let Some(message) = receiver.receive()
            {
                bytes += message.body.len();
                into.push(message);
            }
            if into.len() > before {
                receiver.tell_room();
            }
        }
        self.first = if count == 0 { 0 } else { (self.first + 1) % count };
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        !self.door.has_fresh.load(SeqCst)
            && self.receivers.iter().all(|end| end.messages.is_empty())
    }
}

impl Drop for DoorInbox {
    fn drop(&mut self) {
        // Mailboxes that no host takes are abandoned, too.
        drop(self.door.fresh().take());
    }
}

impl fmt::Debug for DoorInbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DoorInbox({} mailboxes)", self.receivers.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrived(number: u64, bytes: usize) -> ArrivedMessage {
        let message = Message::Hello { life: number, epoch: 0 };
        ArrivedMessage { from: 1, message, body: vec![0; bytes] }
    }

    fn numbers(taken: &[ArrivedMessage]) -> Vec<u64> {
        let number = |arrived: &ArrivedMessage| match arrived.message {
            Message::Hello { life, .. } => life,
            _ => unreachable!("only such messages are sent"),
        };
        taken.iter().map(number).collect()
    }

    fn door() -> Arc<MemberDoor> {
        let peers = BTreeMap::from([("io1".to_owned(), 0), ("io3".to_owned(), 2)]);
        MemberDoor::new(peers, VolumeForm([0; 16]), Waker::none())
    }

    #[test]
    fn doors_are_found_by_volume_and_each_change_is_seen() {
        let doors = MemberDoors::new();
        let first = doors.generation();
        assert!(doors.door("alice").is_none());
        doors.insert("alice", door());
        let second = doors.generation();
        assert_ne!(first, second);
        let alice = doors.door("alice").unwrap();
        assert_eq!((alice.member("io1"), alice.member("io3")), (Some(0), Some(2)));
        // A node without a copy is no member.
        assert_eq!(alice.member("io2"), None);
        doors.remove("alice");
        assert_ne!(doors.generation(), second);
        assert!(doors.door("alice").is_none());
    }

    #[test]
    fn each_plane_has_a_mailbox_and_its_messages_keep_their_order() {
        let door = door();
        let mut inbox = DoorInbox::new(Arc::clone(&door));
        let mut taken = Vec::new();
        assert!(inbox.is_empty());
        let (mut one, mut two) = (door.connect(Waker::none()), door.connect(Waker::none()));
        assert!(!inbox.is_empty(), "a new mailbox may have messages");
        (0..5).for_each(|number| one.send(arrived(number, 0)).unwrap());
        (10..15).for_each(|number| two.send(arrived(number, 0)).unwrap());
        inbox.take(3, usize::MAX, &mut taken);
        assert_eq!(numbers(&taken), [0, 1, 2]);
        taken.clear();
        // The other mailbox comes first now.
        inbox.take(3, usize::MAX, &mut taken);
        assert_eq!(numbers(&taken), [10, 11, 12]);
        drop(one);
        taken.clear();
        inbox.take(9, usize::MAX, &mut taken);
        assert_eq!(numbers(&taken), [3, 4, 13, 14]);
        inbox.take(9, usize::MAX, &mut taken);
        assert_eq!(inbox.receivers.len(), 1, "the mailbox of a plane that has gone goes");
        assert!(inbox.is_empty() && !two.is_abandoned());
        let late = door.connect(Waker::none());
        drop(inbox);
        assert!(two.is_abandoned() && late.is_abandoned());
        assert!(door.connect(Waker::none()).is_abandoned(), "the member is gone");
    }

    #[test]
    fn a_full_mailbox_gives_messages_back_and_says_when_it_has_room() {
        let door = door();
        let mut inbox = DoorInbox::new(Arc::clone(&door));
        let mut sender = door.connect(Waker::none());
        let mut taken = Vec::new();
        (0..DOOR_MESSAGES_MAX as u64).for_each(|at| sender.send(arrived(at, 0)).unwrap());
        assert!(!sender.shared.refused.load(SeqCst));
        let Err(Full(back)) = sender.send(arrived(999, 7)) else { panic!("there was room") };
        assert!(sender.shared.refused.load(SeqCst));
        assert_eq!(sender.shared.bytes.load(SeqCst), 0, "what was not taken does not count");
        inbox.take(1, usize::MAX, &mut taken);
        assert!(!sender.shared.refused.load(SeqCst), "the plane was woken");
        sender.send(back).unwrap();
        assert_eq!(sender.shared.bytes.load(SeqCst), 7);
    }

    #[test]
    fn a_mailbox_has_a_bound_in_bytes_and_takes_the_largest_message() {
        let door = door();
        let mut inbox = DoorInbox::new(Arc::clone(&door));
        let mut sender = door.connect(Waker::none());
        let mut taken = Vec::new();
        sender.send(arrived(1, DOOR_BYTES_MAX - 1)).unwrap();
        sender.send(arrived(2, 1 << 20)).unwrap();
        let Err(Full(_)) = sender.send(arrived(3, 0)) else { panic!("there was room") };
        // A round takes so many bytes that it is short, and one message at least.
        inbox.take(9, 1, &mut taken);
        assert_eq!(numbers(&taken), [1]);
        sender.send(arrived(3, 0)).unwrap();
        inbox.take(9, usize::MAX, &mut taken);
        assert_eq!(numbers(&taken), [1, 2, 3]);
        assert_eq!(sender.shared.bytes.load(SeqCst), 0);
    }
}
