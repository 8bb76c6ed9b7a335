//! Copies between bytes and pieces of memory.

use virtio::Segment;
use volume::copy::{Prefetch, gather, scatter, total_bytes};

pub(crate) fn gathered(segments: &[Segment]) -> Vec<u8> {
    let mut bytes = vec![0; total_bytes(segments) as usize];
    // SAFETY: the pieces are the test's, and the bytes have room for them.
    unsafe { gather(segments, bytes.as_mut_ptr(), Prefetch::NONE) };
    bytes
}

pub(crate) fn scattered(bytes: &[u8], segments: &[Segment]) {
    assert_eq!(total_bytes(segments), bytes.len() as u64);
    // SAFETY: the pieces are the test's, and as long as the bytes.
    unsafe { scatter(bytes.as_ptr(), segments, Prefetch::NONE) };
}
