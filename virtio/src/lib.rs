//! Virtqueues and vhost-user: the device side, and the driver side that stands in for a guest.
