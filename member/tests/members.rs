//! Members of the real code in one thread, on simulated volumes, networks and registries.

mod members {
    mod clients;
    mod node;
    mod simulation;
    mod volume;
}
