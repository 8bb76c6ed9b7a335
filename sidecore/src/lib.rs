//! The polling runtime: pinned cores, request slots, idling, timers, mailboxes, counters.
