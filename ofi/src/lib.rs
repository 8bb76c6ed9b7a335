//! `libvrio-fi.so`: a provider that libfabric loads (`FI_PROVIDER_PATH`). By it unmodified MPI
//! programs use a domain.
//!
//! It needs nothing of libfabric's to be built or loaded: `abi` describes their interface, for
//! the releases 1.17 to 2.x. A program opens the `provider` first, then a `domain`, and in the
//! domain an address vector (`av`), a completion queue (`cq`), counters (`cntr`) and an
//! `endpoint`.
//!
//! There are three levels of files. The data of an object is the lowest (`cq/queue.rs`). The
//! `state` of a domain holds all this data behind one lock, its `gate`. The calls of the
//! program (`cq/calls.rs`) are above it.
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

/// The provider's name in libfabric's lists.
const NAME: &std::ffi::CStr = c"vrio";
/// The provider's version, as `fi_info` shows it. libfabric takes the newest of several providers
/// of one name.
const VERSION: u32 = version(0, 1);
/// The newest version of libfabric's interface that the provider claims. The library skips a
/// provider that knows an older version than the program asks for. Each 2.x so far has only added
/// to the ends of structs and tables.
const INTERFACE: u32 = version(2, 99);

/// Describes the provider to libfabric, which calls this when it has loaded the file. libfabric
/// keeps the pointer and writes into `context`.
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
    // The library uses it for as long as the process lives, so it is never freed.
    Box::into_raw(Box::new(provider)).cast()
}

/// The library unloads the provider. Objects that are still open are lost.
extern "C" fn cleanup() {}
