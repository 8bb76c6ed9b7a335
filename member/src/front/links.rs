//! The host's ends of all channels of a replicated volume.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use replica::{ClientId, ClientRequest, Life, RequestId};
use volume::Status;

use super::{FrontAnswer, FrontContent, FrontEnd, FrontOp, FrontRequest, FrontShared};
use crate::content::RangeContent;

/// Requests of a channel that are taken in a round, so that it is short and each channel has a
/// part of it.
const REQUESTS_PER_ROUND: usize = 16;

/// A request for the protocol.
pub(crate) type PutRequest = (RequestId, ClientRequest<RangeContent>);

/// Where requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrontPlace {
    /// This member serves in this term, and takes requests now.
    Here(u64),
    /// It serves in this term, and takes no request at this moment.
    Busy(u64),
    /// Another member serves, or this member has ended.
    Elsewhere,
    /// It is not known which member serves: requests wait.
    Unknown,
}

impl FrontPlace {
    fn term(self) -> u64 {
        match self {
            Self::Here(term) | Self::Busy(term) => term,
            Self::Elsewhere | Self::Unknown => 0,
        }
    }
}

/// A request that the protocol has.
#[derive(Debug)]
struct Offered {
    number: u64,
    request: ClientRequest<RangeContent>,
    /// The table of applied requests was full: it is offered again.
    again: bool,
}

#[derive(Debug)]
struct FrontLink {
    end: FrontEnd,
    attachment: u128,
    /// The channel's term; 0 until there is one.
    term: u64,
    /// By slot.
    offered: Vec<Option<Offered>>,
}

impl FrontLink {
    fn tell(&mut self, slot: u16, number: u64, status: Status, bytes: Option<Vec<u8>>) {
        let Some(answers) = &mut self.end.answers else { return };
        let told = answers.send(FrontAnswer { slot, number, status, bytes });
        debug_assert!(told.is_ok() || answers.is_abandoned(), "a slot has one answer at a time");
    }

    /// Ends the requests in the mailbox.
    fn refuse_all(&mut self) -> bool {
        let mut moved = false;
        while let Some(FrontRequest { slot, number, .. }) = self.end.requests.receive() {
            self.tell(slot, number, Status::Fenced, None);
            moved = true;
        }
        moved
    }

    /// Ends the requests that the protocol was not given for good.
    fn refuse_offered(&mut self, which: impl Fn(&Offered) -> bool) {
        for slot in 0..self.offered.len() {
            if let Some(Offered { number, .. }) = self.offered[slot].take_if(|it| which(it)) {
                self.tell(slot as u16, number, Status::Fenced, None);
            }
        }
    }

    fn take(&mut self, into: &mut Vec<PutRequest>) -> bool {
        let before = into.len();
        while into.len() < before + REQUESTS_PER_ROUND
            && let Some(FrontRequest { slot, number, op }) = self.end.requests.receive()
        {
            let request = match op {
                FrontOp::Read(extent) => ClientRequest::Read(extent),
                FrontOp::Write(extent, content) => ClientRequest::Write(extent, of(content)),
                FrontOp::Flush => ClientRequest::Flush,
            };
            let client = ClientId { attachment: self.attachment, channel: 0, slot };
            into.push((RequestId { client, number }, request.clone()));
            if let Some(place) = self.offered.get_mut(usize::from(slot)) {
                *place = Some(Offered { number, request, again: false });
            }
        }
        into.len() > before
    }
}

fn of(content: FrontContent) -> RangeContent {
    match content {
        FrontContent::Bytes(bytes) => RangeContent::of(bytes),
        FrontContent::Zeroes => RangeContent::Zeroes,
        FrontContent::Discarded => RangeContent::Discarded,
    }
}

/// All of them. With it all channels end, also later channels.
#[derive(Debug)]
pub(crate) struct FrontLinks {
    shared: Arc<FrontShared>,
    life: Life,
    /// By the channels' numbers.
    links: BTreeMap<u64, FrontLink>,
    last: u64,
}

impl Drop for FrontLinks {
    fn drop(&mut self) {
        self.shared.end_term();
        drop(self.shared.fresh.lock().take());
    }
}

impl FrontLinks {
    pub(crate) fn new(shared: Arc<FrontShared>, life: Life) -> Self {
        Self { shared, life, links: BTreeMap::new(), last: 0 }
    }

    pub(crate) fn shared(&self) -> &FrontShared {
        &self.shared
    }

    /// The attachment of the channel of this number, as the protocol knows it. 0 is the host's.
    pub(crate) fn attachment(life: Life, number: u64) -> u128 {
        u128::from(life) << 64 | u128::from(number)
    }

    /// Attachments whose requests may still come.
    pub(crate) fn live(&self) -> BTreeSet<u128> {
        let own = Self::attachment(self.life, 0);
        self.links.values().map(|link| link.attachment).chain([own]).collect()
    }

    /// Takes requests, and ends requests that cannot go on. `gone` gets attachments of channels
    /// that have gone.
    pub(crate) fn gather(
        &mut self,
        place: FrontPlace,
        into: &mut Vec<PutRequest>,
        gone: &mut Vec<u128>,
    ) -> bool {
        if self.shared.has_fresh.swap(false, SeqCst) {
            for end in self.shared.fresh.lock().iter_mut().flat_map(|fresh| fresh.drain(..)) {
                self.last += 1;
                let attachment = Self::attachment(self.life, self.last);
                let offered = (0..end.depth).map(|_| None).collect();
                let link = FrontLink { term: end.opened_in, end, attachment, offered };
                self.links.insert(self.last, link);
            }
        }
        let mut moved = false;
        self.links.retain(|_, link| {
            if link.end.requests.is_abandoned() {
                // Requests that wait were never offered, and their user has gone.
                gone.push(link.attachment);
                return false;
            }
            if link.term == 0 {
                link.term = place.term();
            }
            let is_over = link.term != 0 && link.term != place.term();
            let lets_go = link.end.lets_go.load(SeqCst);
            if is_over || lets_go || place == FrontPlace::Elsewhere {
                moved |= link.refuse_all();
                link.refuse_offered(|it| it.again && lets_go);
            } else if matches!(place, FrontPlace::Here(_)) {
                moved |= link.take(into);
            }
            true
        });
        moved
    }

    fn link(&mut self, id: RequestId) -> Option<(&mut FrontLink, usize)> {
        let number = id.client.attachment as u64;
        let link = self.links.get_mut(&number)?;
        let slot = usize::from(id.client.slot);
        let offered = link.offered.get(slot)?.as_ref()?;
        let is_it = link.attachment == id.client.attachment && offered.number == id.number;
        is_it.then_some((link, slot))
    }

    /// A request has ended. One that is not known any more was ended before.
    pub(crate) fn answer(&mut self, id: RequestId, status: Status, content: Option<RangeContent>) {
        let Some((link, slot)) = self.link(id) else { return };
        let bytes = match (content, link.offered[slot].take().map(|it| it.request)) {
            // Read for this request alone: the bytes need no copy.
            (Some(RangeContent::Bytes(bytes)), _) => {
                Some(std::rc::Rc::try_unwrap(bytes).unwrap_or_else(|bytes| bytes.to_vec()))
            }
            _ => None,
        };
        link.tell(slot as u16, id.number, status, bytes);
    }

    /// The table of applied requests had no place for it: it is offered again later.
    pub(crate) fn put_off(&mut self, id: RequestId) {
        if let Some((link, slot)) = self.link(id)
            && let Some(offered) = &mut link.offered[slot]
        {
            offered.again = true;
        }
    }

    /// The requests that were put off.
    pub(crate) fn offer_again(&mut self, into: &mut Vec<PutRequest>) {
        for link in self.links.values_mut() {
            let client = ClientId { attachment: link.attachment, channel: 0, slot: 0 };
            for (slot, offered) in link.offered.iter_mut().enumerate() {
                if let Some(offered) = offered.as_mut().filter(|it| it.again) {
                    offered.again = false;
                    let client = ClientId { slot: slot as u16, ..client };
                    let id = RequestId { client, number: offered.number };
                    into.push((id, offered.request.clone()));
                }
            }
        }
    }

    /// The term has ended: no request of it is answered as done from now on, since another member
    /// may not have it, or may have gone on from it.
    pub(crate) fn end_term(&mut self) {
        self.shared.end_term();
        self.links.values_mut().for_each(|link| link.refuse_offered(|_| true));
    }

    /// Whether there is work at this place.
    pub(crate) fn has_work(&self, place: FrontPlace) -> bool {
        let waits = |link: &FrontLink| {
            let is_over = link.term != 0 && link.term != place.term();
            let lets_go = link.end.lets_go.load(SeqCst);
            let is_taken = matches!(place, FrontPlace::Here(_) | FrontPlace::Elsewhere);
            link.end.requests.is_abandoned()
                || (is_over || lets_go || is_taken) && !link.end.requests.is_empty()
        };
        self.shared.has_fresh.load(SeqCst) || self.links.values().any(waits)
    }
}
