//! The cases of `sleep.c`.

crate::talk::cases! { "sleep.c":
    descriptor call long long_call counter still killed killed_call threads refused refused_by_one
    queued sleepers both late reads inherited torn
}
