//! `libvrio-fi.so`: a provider that libfabric loads (`FI_PROVIDER_PATH`), and so the way of
//! unmodified MPI programs into a domain.
//!
//! It needs nothing of libfabric's to be built or loaded: what the two hand each other is written
//! down in [`abi`], for the releases 1.17 to 2.x. A program opens, from top to bottom, a fabric
//! ([`provider`]), a [`domain`] in which all else lives behind one lock ([`gate`], [`state`]), an
//! address vector ([`av`]), a completion queue ([`cq`]), counters ([`cntr`]) and an [`endpoint`].
//!
//! A panic in a function that C calls ends the process: it never unwinds into C.

mod abi;
mod av;
mod cntr;
mod cq;
mod domain;
mod endpoint;
mod eq;
mod gate;
mod getinfo;
mod idle;
mod log;
mod mr;
mod object;
mod provider;
mod state;
mod wait;

use abi::{Provider, version};
use std::ffi::c_void;
use std::ptr;

/// What libfabric lists it as.
const NAME: &std::ffi::CStr = c"vrio";
/// Ours, told in `fi_info`; libfabric takes the newest of several providers of one name.
const VERSION: u32 = version(0, 1);
/// Up to which version of its interface the provider may be asked: the library passes by who knows
/// less than the program asks for, and every 2.x has only ever added to the end of things.
const INTERFACE: u32 = version(2, 99);

/// What libfabric asks for when it has loaded the file: who we are. It keeps the pointer and
/// writes into `context`.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut c_void {
    let provider = Provider {
        version: VERSION,
        fi_version: INTERFACE,
        context: [ptr::null_mut(); 4],
        name: NAME.as_ptr(),
        getinfo: getinfo::getinfo,
        fabric: provider::open,
        cleanup,
    };
    // It is the library's for as long as the process lives, so it is never given back.
    Box::into_raw(Box::new(provider)).cast()
}

/// The library unloads us. Everything that was open is closed by then or lost.
extern "C" fn cleanup() {}
