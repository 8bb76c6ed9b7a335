//! What a removed object took goes back to the system.

/// Lets the allocator give pages back that nothing lies in any more. By itself it keeps those below
/// the last piece in use, so that a node through which many objects go seems to grow. Takes about a
/// millisecond, on the thread that changes objects; sidecores allocate nothing while they work.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes the allocator's own locks, and moves nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
