//! Members of the real code in one thread, on simulated volumes, networks and registries: without
//! their hosts, and with hosts and their users.

mod members {
    mod clients;
    mod node;
    mod simulation;
    pub(crate) mod volume;
}

mod hosts;
