//! The macro that declares a struct of C: each field with its offset, which the compiler checks.

/// A struct's name in C, its size and its fields, for the comparison with the headers.
#[cfg(test)]
pub(crate) struct AbiLayout {
    pub(crate) name: &'static str,
    /// The size in bytes; none where 2.x has more fields than 1.17.
    pub(crate) bytes: Option<usize>,
    /// Each field's name and offset, and whether only 2.x has it.
    pub(crate) fields: &'static [(&'static str, usize, bool)],
}

/// Makes a struct of C's from its fields and their offsets, which the compiler checks. A table of
/// calls takes the type of the object that its calls get. The calls get the object by reference, so
/// the layout is the same for each type.
macro_rules! layout {
    ($(#[$meta:meta])* $name:ident $(<$object:ident>)? = $c:literal, $bytes:literal {
        $($(#[$about:meta])* $field:ident @ $offset:literal: $kind:ty,)*
    } $(later {
        $($(#[$more:meta])* $later:ident @ $at:literal: $type:ty,)*
    })?) => {
        $(#[$meta])*
        #[repr(C)]
        pub(crate) struct $name $(<$object: 'static>)? {
            $($(#[$about])* pub(crate) $field: $kind,)*
            $($($(#[$more])* pub(crate) $later: $type,)*)?
        }

        const _: () = {
            $(type $object = ();)?
            type Laid = $name $(<$object>)?;
            assert!(size_of::<Laid>() == $bytes);
            $(assert!(::core::mem::offset_of!(Laid, $field) == $offset);)*
            $($(assert!(::core::mem::offset_of!(Laid, $later) == $at);)*)?
        };

        #[cfg(test)]
        impl $(<$object: 'static>)? $name $(<$object>)? {
            pub(crate) const LAYOUT: crate::abi::layout::AbiLayout = {
                const LATER: &[&str] = &[$($(stringify!($later),)*)?];
                crate::abi::layout::AbiLayout {
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
pub(super) use layout;
