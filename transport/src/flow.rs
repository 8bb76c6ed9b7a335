//! Credit: how many bytes of call bodies a flow may bring to its receiver. Counted from the start
//! of the session and only ever growing, so that frames may be lost, doubled and reordered.
//!
//! A body counts with its cost to the receiver's pool, so the credit given out bounds the memory.

use crate::wire::MESSAGE_MAX;

/// The smallest window of a flow: the grant lags by a quarter, and a full message must still fit.
pub(crate) const WINDOW_BYTES_MIN: u64 = 2 * MESSAGE_MAX as u64;

/// The sender's view of one flow.
#[derive(Clone, Debug)]
pub(crate) struct SendCredit {
    used_bytes: u64,
    limit_bytes: u64,
}

impl SendCredit {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self { used_bytes: 0, limit_bytes }
    }

    /// Takes credit for a body, when there is enough.
    pub(crate) fn take(&mut self, charge_bytes: u64) -> bool {
        let is_enough = self.limit_bytes - self.used_bytes >= charge_bytes;
        if is_enough {
            self.used_bytes += charge_bytes;
        }
        is_enough
    }

    /// The receiver granted `limit_bytes` in all.
    pub(crate) fn grant(&mut self, limit_bytes: u64) {
        self.limit_bytes = self.limit_bytes.max(limit_bytes);
    }
}

/// The receiver's view of one flow.
#[derive(Clone, Debug)]
pub(crate) struct ReceiveCredit {
    arrived_bytes: u64,
    released_bytes: u64,
    granted_bytes: u64,
}

impl ReceiveCredit {
    pub(crate) fn new(granted_bytes: u64) -> Self {
        Self { arrived_bytes: 0, released_bytes: 0, granted_bytes }
    }

    /// Whether the peer may bring a body; it is a violation when not.
    pub(crate) fn admits(&self, charge_bytes: u64) -> bool {
        self.granted_bytes - self.arrived_bytes >= charge_bytes
    }

    /// A body began to arrive.
    pub(crate) fn arrived(&mut self, charge_bytes: u64) {
        self.arrived_bytes += charge_bytes;
        assert!(self.arrived_bytes <= self.granted_bytes, "a body was admitted without credit");
    }

    /// A call was answered. Tells whether more credit should be announced: not for each call, but
    /// well before the peer runs out.
    pub(crate) fn released(&mut self, charge_bytes: u64, window_bytes: u64) -> bool {
        self.released_bytes += charge_bytes;
        assert!(self.released_bytes <= self.arrived_bytes, "a body was released twice");
        let target_bytes = self.released_bytes + window_bytes;
        let is_worth_it = target_bytes >= self.granted_bytes + window_bytes / 4;
        if is_worth_it {
            self.granted_bytes = target_bytes;
        }
        is_worth_it
    }

    /// The credit to announce.
    pub(crate) fn granted_bytes(&self) -> u64 {
        self.granted_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_everything_is_answered_a_full_message_fits() {
        let window_bytes = WINDOW_BYTES_MIN;
        for charge_bytes in [4 << 10, 64 << 10, 256 << 10, 1 << 20] {
            let mut sender = SendCredit::new(window_bytes);
            let mut receiver = ReceiveCredit::new(window_bytes);
            for _ in 0..1000 {
                assert!(sender.take(charge_bytes), "stuck at {charge_bytes}");
                assert!(receiver.admits(charge_bytes));
                receiver.arrived(charge_bytes);
                if receiver.released(charge_bytes, window_bytes) {
                    sender.grant(receiver.granted_bytes());
                }
                assert!(receiver.granted_bytes - receiver.arrived_bytes >= MESSAGE_MAX as u64);
            }
        }
    }

    #[test]
    fn a_smaller_window_takes_nothing_back() {
        let mut receiver = ReceiveCredit::new(8 << 20);
        receiver.arrived(4 << 20);
        assert!(!receiver.released(4 << 20, WINDOW_BYTES_MIN));
        assert_eq!(receiver.granted_bytes(), 8 << 20);
        assert!(receiver.admits(4 << 20) && !receiver.admits((4 << 20) + 1));
    }

    #[test]
    fn old_grants_change_nothing() {
        let mut sender = SendCredit::new(100);
        sender.grant(300);
        sender.grant(200);
        assert!(sender.take(300) && !sender.take(1));
    }
}
