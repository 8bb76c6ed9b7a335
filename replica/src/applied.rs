//! The clients' newest requests that were applied.

use std::collections::BTreeMap;

/// A client: a place for one request at a time. A request that is sent again comes from the same
/// place, through whichever member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId {
    /// The attachment, which is one disk on one volume.
    pub attachment: u128,
    /// The attachment's channel.
    pub channel: u16,
    /// The channel's slot.
    pub slot: u16,
}

/// A request of a client. A request that is sent again keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId {
    /// The client.
    pub client: ClientId,
    /// Its requests in order; a client has one request at a time.
    pub number: u64,
}

/// The newest request of each client that was applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Applied {
    numbers: BTreeMap<ClientId, u64>,
}

impl Applied {
    /// Whether this request, or a newer one of its client, was applied.
    pub fn has(&self, id: RequestId) -> bool {
        self.numbers.get(&id.client).is_some_and(|last| *last >= id.number)
    }

    /// Whether there is a place for a request of the client.
    pub fn takes(&self, client: ClientId) -> bool {
        self.numbers.len() < APPLIED_MAX || self.numbers.contains_key(&client)
    }

    /// All clients, each with the number of its newest request.
    pub fn requests(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.numbers.iter().map(|(client, number)| RequestId { client: *client, number: *number })
    }

    /// How many clients it has.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Whether no request was applied.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// A request was applied.
    pub fn note(&mut self, id: RequestId) {
        debug_assert!(self.takes(id.client), "an operation is taken only if there is a place");
        self.numbers.insert(id.client, id.number);
    }

    /// No request of the attachment comes any more.
    pub(crate) fn forget(&mut self, attachment: u128) {
        self.numbers.retain(|client, _| client.attachment != attachment);
    }

    pub(crate) fn clear(&mut self) {
        self.numbers.clear();
    }
}

/// Clients of a volume whose requests are remembered: 16 disks with 16 channels of 128 requests.
/// The table goes to a member that joins as one message, of a mebibyte at most.
pub const APPLIED_MAX: usize = 32_768;

#[cfg(test)]
mod tests {
    use super::*;

    fn request(attachment: u128, slot: u16, number: u64) -> RequestId {
        RequestId { client: ClientId { attachment, channel: 0, slot }, number }
    }

    #[test]
    fn a_full_table_takes_no_further_client_until_an_attachment_is_forgotten() {
        let mut applied = Applied::default();
        for at in 0..APPLIED_MAX {
            let id = request(at as u128 % 2, (at / 2) as u16, 1);
            assert!(applied.takes(id.client) && !applied.has(id));
            applied.note(id);
        }
        let (known, new) = (request(1, 7, 2), request(2, 0, 1));
        assert!(applied.takes(known.client) && !applied.takes(new.client));
        applied.note(known);
        assert!(applied.has(known) && applied.has(request(1, 7, 1)));
        assert!(!applied.has(request(1, 7, 3)));
        applied.forget(1);
        assert_eq!(applied.len(), APPLIED_MAX / 2);
        assert!(applied.takes(new.client) && applied.has(request(0, 7, 1)));
        assert!(!applied.has(known) && applied.requests().all(|id| id.client.attachment == 0));
    }
}
