//! The system's allocator, counting for each thread: for tests that something allocates nothing
//! once it is warm, or how much it holds. Tests of other crates name this file by its path.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Of this thread; the test harness has threads of its own.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static HELD_BYTES: Cell<i64> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: everything is handed on to the system's allocator; the count is a plain cell that needs
// no allocation itself. The methods that are not here (growing, zeroed memory) call these two.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        HELD_BYTES.set(HELD_BYTES.get() + layout.size() as i64);
        // SAFETY: the caller's promises are handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        HELD_BYTES.set(HELD_BYTES.get() - layout.size() as i64);
        // SAFETY: the caller's promises are handed on.
        unsafe { System.dealloc(place, layout) }
    }
}

/// How often this thread has allocated.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Bytes that this thread has allocated and not freed. Memory that another thread frees is
/// subtracted from that thread's count.
pub(crate) fn held_bytes() -> i64 {
    HELD_BYTES.get()
}

#[test]
fn allocations_are_counted() {
    let (allocations_before, held_before) = (allocations(), held_bytes());
    let place = std::hint::black_box(vec![1u8; 5000]);
    assert_eq!((allocations() - allocations_before, held_bytes() - held_before), (1, 5000));
    drop(place);
    assert_eq!((allocations() - allocations_before, held_bytes() - held_before), (1, 0));
}
