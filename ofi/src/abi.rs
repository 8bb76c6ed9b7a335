//! What libfabric and a provider hand each other, byte by byte as C has it on a 64-bit machine.
//!
//! Nothing here is made from headers when it is built: every field carries its offset, the
//! compiler checks it, and a test compares all of it with the headers of an installed libfabric.
//!
//! There are two ABIs, 1.x (Debian's 1.17) and 2.x. Structs and tables have only ever grown at
//! their end: fields behind `later` are those that 1.17 does not have. Of what a program hands
//! over only the fields before that are read; what we hand out is always as long as 2.x has it,
//! and tables say how long they are.

mod calls;
mod data;
mod info;
mod objects;
mod tables;
#[cfg(test)]
mod tests;
mod words;

pub(crate) use calls::*;
pub(crate) use data::*;
pub(crate) use info::*;
pub(crate) use objects::*;
pub(crate) use tables::*;
pub(crate) use words::*;

/// What C calls a struct, how large it is with the fields of 1.17 alone, and where those are; for
/// the comparison with the headers.
#[cfg(test)]
pub(crate) struct AbiLayout {
    pub(crate) name: &'static str,
    /// None where 2.x has more fields than 1.17.
    pub(crate) bytes: Option<usize>,
    /// Field, offset, whether 2.x alone has it.
    pub(crate) fields: &'static [(&'static str, usize, bool)],
}

/// Makes a struct of C's from its fields and their offsets, which the compiler checks.
macro_rules! layout {
    ($(#[$meta:meta])* $name:ident = $c:literal, $bytes:literal {
        $($(#[$about:meta])* $field:ident @ $offset:literal: $kind:ty,)*
    } $(later {
        $($(#[$more:meta])* $later:ident @ $at:literal: $type:ty,)*
    })?) => {
        $(#[$meta])*
        #[repr(C)]
        pub(crate) struct $name {
            $($(#[$about])* pub(crate) $field: $kind,)*
            $($($(#[$more])* pub(crate) $later: $type,)*)?
        }

        const _: () = {
            assert!(size_of::<$name>() == $bytes);
            $(assert!(::core::mem::offset_of!($name, $field) == $offset);)*
            $($(assert!(::core::mem::offset_of!($name, $later) == $at);)*)?
        };

        #[cfg(test)]
        impl $name {
            pub(crate) const LAYOUT: crate::abi::AbiLayout = {
                const LATER: &[&str] = &[$($(stringify!($later),)*)?];
                crate::abi::AbiLayout {
                    name: $c,
                    bytes: if LATER.is_empty() { Some($bytes) } else { None },
                    fields: &[
                        $((stringify!($field), $offset, false),)*
                        $($((stringify!($later), $at, true),)*)?
                    ],
                }
            };
        }
    };
}
pub(crate) use layout;
