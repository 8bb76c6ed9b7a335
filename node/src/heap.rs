//! Returns memory of removed objects to the system.

/// Lets the allocator return unused pages. By itself it keeps those below the last piece in use, so
/// that a node through which many objects go seems to grow. It takes about a millisecond, on the
/// thread that changes objects; sidecores allocate nothing while they work.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the allocator's own locks, and moves nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
