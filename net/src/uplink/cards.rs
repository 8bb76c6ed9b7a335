//! Taking interfaces for AF_XDP. It needs rights that a running node has given up; another process
//! may have kept them for it.

use std::fmt;

use link::{Promiscuous, XdpCard, XdpError};

/// A claim that an uplink keeps beside its interface. When the claim is dropped, the interface is
/// not promiscuous any more.
pub type InterfaceClaim = Box<dyn fmt::Debug + Send>;

/// The process that may take interfaces: this one, or another process that kept the rights.
pub trait Cards: Send + Sync {
    /// Takes the interface of this name.
    ///
    /// # Errors
    /// The obstacle, for the operator.
    fn open(&self, name: &str) -> Result<(XdpCard, InterfaceClaim), XdpError>;

    /// The hold alone, on the interface of this name and number, which another process has opened.
    ///
    /// # Errors
    /// The obstacle, for the operator.
    fn hold(&self, name: &str, index: u32) -> Result<InterfaceClaim, XdpError>;

    /// The reason that existing holds have ended and no interface can be taken, if there is one.
    fn trouble(&self) -> Option<String> {
        None
    }
}

/// This process, which has the rights itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnCards;

impl Cards for OwnCards {
    fn open(&self, name: &str) -> Result<(XdpCard, InterfaceClaim), XdpError> {
        let (card, promiscuous) = XdpCard::open(name)?;
        Ok((card, Box::new(promiscuous)))
    }

    fn hold(&self, name: &str, index: u32) -> Result<InterfaceClaim, XdpError> {
        Ok(Box::new(Promiscuous::beside(name, index)?))
    }
}
