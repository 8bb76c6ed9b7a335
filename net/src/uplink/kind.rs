//! The description that every uplink has of itself.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use super::cards::Cards;
use super::hand_over::HandedInterface;
use super::interface::INTERFACE_NAME;
use super::opened::OpenUplink;

/// An uplink as it is configured: `"NAME:PLACE"`. Every file in `uplink/` that has a port has one.
pub trait NetworkUplink: Clone + fmt::Debug + PartialEq + Eq + Hash {
    /// The word before the colon.
    const NAME: &'static str;
    /// The word for the rest, as the reference writes it.
    const PLACE: &'static str = "NAME";
    /// The form of the rest, for the operator.
    const PLACE_FORM: &'static str = INTERFACE_NAME;
    /// The needs that a node must meet after it gave its rights up.
    const NEEDS: UplinkNeeds;

    /// The uplink with this rest; `None` where the rest has another form.
    fn read(place: &str) -> Option<Self>;

    /// The rest, as it is configured.
    fn place(&self) -> &str;

    /// The interface that it takes by [`Cards`], if it does. A node that gives its rights up starts
    /// a process before, which takes these interfaces and no others.
    fn card(&self) -> Option<&str> {
        None
    }

    /// Opens it. A tap is made if there is none; an interface by AF_XDP is taken by `cards`.
    ///
    /// # Errors
    /// The problem and the way out, for the operator.
    fn open(&self, cards: &Arc<dyn Cards>) -> Result<OpenUplink, String>;

    /// Goes on with an interface that another process has open. The port leaves the interface alone
    /// until [`super::UplinkCore::set_paused`].
    ///
    /// # Errors
    /// The problem, for the operator.
    fn adopt(
        &self,
        handed: HandedInterface<'_>,
        cards: &Arc<dyn Cards>,
    ) -> Result<OpenUplink, String>;
}

/// The needs of an uplink that is opened again after the node gave its rights up. Every node has
/// the calls for ordinary files and sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UplinkNeeds {
    /// Files of devices that the node opens (Landlock).
    pub devices: &'static [&'static str],
    /// The system calls of its own, by number (seccomp).
    pub calls: &'static [i64],
    /// Its requests of ioctl(2) (seccomp).
    pub ioctls: &'static [libc::Ioctl],
}

/// One kind of uplink: its line of the table.
#[derive(Clone, Copy)]
pub struct UplinkKind<C: 'static> {
    /// [`NetworkUplink::NAME`].
    pub name: &'static str,
    /// [`NetworkUplink::PLACE`].
    pub place: &'static str,
    /// [`NetworkUplink::PLACE_FORM`].
    pub place_form: &'static str,
    /// [`NetworkUplink::NEEDS`].
    pub needs: UplinkNeeds,
    /// [`NetworkUplink::read`].
    pub read: fn(&str) -> Option<C>,
}

impl<C> UplinkKind<C> {
    pub(super) const fn of<U: NetworkUplink + Into<C>>() -> Self {
        Self {
            name: U::NAME,
            place: U::PLACE,
            place_form: U::PLACE_FORM,
            needs: U::NEEDS,
            read: |place| U::read(place).map(Into::into),
        }
    }

    /// An uplink of this kind as the reference writes it, such as `"tap:NAME"`.
    pub fn form(&self) -> String {
        format!("\"{}:{}\"", self.name, self.place)
    }
}

impl<C> fmt::Debug for UplinkKind<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
