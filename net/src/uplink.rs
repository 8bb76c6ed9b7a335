//! Uplinks: ports of a network that lead out of the node.
//!
//! `uplinks!` below is the table of all uplinks, one line each. Everything else about an uplink
//! is in its own file: reading it, opening, its state in a hand-over, its needs, and its port
//! (`docs/decisions/060-one-table.md`). Its counters are those of every port.

mod cards;
mod hand_over;
mod interface;
mod keeper;
mod kind;
mod opened;
pub mod tap;
pub mod xdp;

use std::fmt;
use std::sync::Arc;

pub use cards::{Cards, InterfaceClaim, OwnCards};
pub use hand_over::{HandedInterface, InterfaceFds};
pub use interface::{INTERFACE_FORM, is_interface};
pub use keeper::{Keeper, UplinkCore};
pub use kind::{NetworkUplink, UplinkKind, UplinkNeeds};
pub use opened::{MakePort, OpenUplink, UplinkParts};
pub use tap::TapUplink;
pub use xdp::XdpUplink;

macro_rules! uplinks {
    ($($(#[$doc:meta])* $kind:ident($uplink:ty);)*) => {
        /// The uplink of a network, as it is configured.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum UplinkConfig {
            $($(#[$doc])* $kind($uplink),)*
        }

        $(impl From<$uplink> for UplinkConfig {
            fn from(uplink: $uplink) -> Self {
                Self::$kind(uplink)
            }
        })*

        /// Every kind of uplink.
        pub static UPLINKS: &[UplinkKind<UplinkConfig>] = &[$(UplinkKind::of::<$uplink>()),*];

        impl UplinkConfig {
            /// Its needs.
            pub fn needs(&self) -> UplinkNeeds {
                match self {
                    $(Self::$kind(_) => <$uplink>::NEEDS,)*
                }
            }

            /// The interface that it takes by [`Cards`]; see [`NetworkUplink::card`].
            pub fn card(&self) -> Option<&str> {
                match self {
                    $(Self::$kind(uplink) => uplink.card(),)*
                }
            }

            /// Opens it; see [`NetworkUplink::open`].
            ///
            /// # Errors
            /// The problem and the way out, for the operator.
            pub fn open(&self, cards: &Arc<dyn Cards>) -> Result<OpenUplink, String> {
                match self {
                    $(Self::$kind(uplink) => uplink.open(cards),)*
                }
            }

            /// Goes on with what another process has open; see [`NetworkUplink::adopt`].
            ///
            /// # Errors
            /// The problem, for the operator.
            pub fn adopt(
                &self,
                handed: HandedInterface<'_>,
                cards: &Arc<dyn Cards>,
            ) -> Result<OpenUplink, String> {
                match self {
                    $(Self::$kind(uplink) => uplink.adopt(handed, cards),)*
                }
            }
        }

        /// As it is configured.
        impl fmt::Display for UplinkConfig {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$kind(it) => write!(f, "{}:{}", <$uplink>::NAME, it.place()),)*
                }
            }
        }
    };
}

uplinks! {
    /// A tap interface of the host, which is made if there is none of its name.
    Tap(TapUplink);
    /// An Ethernet interface of the host, past its network stack (AF_XDP).
    Xdp(XdpUplink);
}
