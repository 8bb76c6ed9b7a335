//! Asks for a cache line before it is needed. It is a hint: it reads no value, changes nothing and
//! cannot fail, for any address.

/// Has the line of this address come to this core, alone: it is going to be written.
#[inline(always)]
pub fn for_writing(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction changes no register and no memory, and does not fault; a processor
    // that does not know it takes it for one that does nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Has the line of this address come to this core.
#[inline(always)]
pub fn for_reading(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which does not fault; part of the base instruction set.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
