use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;

use io_uring::{opcode, types};
use rustix::event::{PollFd, PollFlags, poll};

use super::*;

fn rings(test: &str) -> Vec<Uring> {
    let rings: Vec<_> = MODES.iter().filter_map(|mode| Uring::with_mode(*mode).ok()).collect();
    if rings.is_empty() {
        println!("SKIP {test}: no io_uring here: {:?}", Uring::new().err());
    }
    rings
}

fn nop(uring: &mut Uring, client: ClientId, token: u32) -> Result<(), Full> {
    // SAFETY: names no memory.
    unsafe { uring.push(client, token, opcode::Nop::new().build()) }
}

fn taken(uring: &mut Uring, client: ClientId) -> Vec<u32> {
    let mut completions = Vec::new();
    uring.take(client, &mut completions);
    assert!(completions.iter().all(|completion| completion.result == 0));
    completions.iter().map(|completion| completion.token).collect()
}

#[test]
fn one_system_call_carries_a_whole_round_and_sorts_what_returns() {
    for mut uring in rings("one_system_call_carries_a_whole_round") {
        let (one, two) = (uring.add_client(8), uring.add_client(8));
        for token in 0..8 {
            nop(&mut uring, one, token).expect("room");
            nop(&mut uring, two, token + 100).expect("room");
        }
        assert!(uring.round().is_busy());
        assert_eq!(taken(&mut uring, one), (0..8).collect::<Vec<_>>());
        assert_eq!(taken(&mut uring, two), (100..108).collect::<Vec<_>>());
        assert_eq!((uring.counters.enters.get(), uring.counters.submitted.get()), (1, 16));
        assert!(!uring.round().is_busy());
        assert_eq!(uring.counters.enters.get(), 1, "no system call without work");
        uring.remove_client(one);
        assert_eq!(uring.add_client(1), one, "the place is used again");
    }
}

#[test]
fn a_full_ring_refuses_and_counts() {
    for mut uring in rings("a_full_ring_refuses_and_counts") {
        let client = uring.add_client(2 * ENTRIES);
        for token in 0..ENTRIES {
            nop(&mut uring, client, token).expect("room");
        }
        assert!(!uring.has_room());
        assert_eq!(nop(&mut uring, client, 7), Err(Full));
        assert_eq!(uring.counters.full.get(), 1);
        let _ = uring.round();
        assert_eq!(taken(&mut uring, client).len(), ENTRIES as usize);
        assert!(nop(&mut uring, client, 7).is_ok());
        uring.wait_for(client);
        assert_eq!(taken(&mut uring, client), [7]);
    }
}

/// Whether the eventfd is, or within the time becomes, readable.
fn is_signalled(uring: &Uring, timeout_s: i64) -> bool {
    let mut fds = [PollFd::new(&uring.event, PollFlags::IN)];
    let timeout = rustix::time::Timespec { tv_sec: timeout_s, tv_nsec: 0 };
    poll(&mut fds, Some(&timeout)).expect("poll") == 1
}

#[test]
fn completions_end_a_sleep_and_only_then_signal() {
    for mut uring in rings("what_comes_back_ends_a_sleep") {
        let client = uring.add_client(4);
        let (reader, mut writer) = io::pipe().expect("a pipe");
        let mut byte = [0u8; 1];
        let entry = |byte: &mut [u8; 1]| {
            opcode::Read::new(types::Fd(reader.as_raw_fd()), byte.as_mut_ptr(), 1).build()
        };
        // SAFETY: the byte and the pipe live until the completion was taken below.
        unsafe { uring.push(client, 3, entry(&mut byte)) }.expect("room");
        let _ = uring.round();
        assert!(!uring.arm(&mut Wake::new()).is_busy() && !is_signalled(&uring, 0));
        let wrote = std::thread::spawn(move || {
            writer.write_all(b"x").expect("the pipe has room");
            writer
        });
        assert!(is_signalled(&uring, 60), "{:?}: nobody was woken", uring.mode());
        let mut writer = wrote.join().expect("no panic");
        uring.disarm();
        assert!(uring.round().is_busy());
        let mut completions = Vec::new();
        uring.take(client, &mut completions);
        assert_eq!((completions[0], byte[0]), (Completion { token: 3, result: 1 }, b'x'));
        // Awake, it is polled, and the kernel is spared the signals.
        // SAFETY: as above.
        unsafe { uring.push(client, 4, entry(&mut byte)) }.expect("room");
        writer.write_all(b"y").expect("the pipe has room");
        uring.wait_for(client);
        assert!(!is_signalled(&uring, 0));
        assert!(uring.arm(&mut Wake::new()).is_busy(), "there is mail");
        uring.disarm();
    }
}

/// A file's completion comes late, through a worker of the kernel; the ring's own descriptor does
/// not tell of it.
#[test]
fn a_files_completion_ends_a_sleep() {
    for mut uring in rings("a_files_completion_ends_a_sleep") {
        let client = uring.add_client(1);
        let here = std::env::current_exe().expect("a path");
        let file = tempfile::tempfile_in(here.parent().expect("in a directory")).expect("room");
        let bytes = vec![7u8; 1 << 20];
        for turn in 0..20 {
            let fd = types::Fd(file.as_raw_fd());
            let entry = opcode::Write::new(fd, bytes.as_ptr(), bytes.len() as u32);
            let entry = entry.offset(turn << 20).rw_flags(libc::RWF_DSYNC).build();
            // SAFETY: bytes and file live until the completion was taken below.
            unsafe { uring.push(client, 0, entry) }.expect("room");
            let mut completions = Vec::new();
            while completions.is_empty() {
                let _ = uring.round();
                if !uring.arm(&mut Wake::new()).is_busy() {
                    assert!(is_signalled(&uring, 60), "{:?}: nobody was woken", uring.mode());
                }
                uring.disarm();
                uring.take(client, &mut completions);
            }
            assert_eq!(completions[0].result, 1 << 20);
        }
    }
}

#[test]
fn a_bad_request_comes_back_as_an_error_and_the_rest_goes_on() {
    for mut uring in rings("a_bad_request_comes_back_as_an_error") {
        let client = uring.add_client(4);
        let file = File::open("/dev/zero").expect("a device that is always there");
        let mut byte = [1u8; 1];
        for (token, fd) in [(0, -1), (1, file.as_raw_fd())] {
            let entry = opcode::Read::new(types::Fd(fd), byte.as_mut_ptr(), 1).build();
            // SAFETY: the byte and the file live until the completions were taken below.
            unsafe { uring.push(client, token, entry) }.expect("room");
        }
        let _ = uring.round();
        uring.wait_for(client);
        let mut completions = Vec::new();
        uring.take(client, &mut completions);
        completions.sort_by_key(|completion| completion.token);
        assert_eq!(completions[0].result, -libc::EBADF);
        assert_eq!(completions[1].result, 1);
    }
}

#[test]
#[should_panic(expected = "after its last completion")]
fn a_client_with_requests_outstanding_cannot_leave() {
    let Ok(mut uring) = Uring::new() else {
        panic!("SKIP: no io_uring here; a client leaves after its last completion");
    };
    let client = uring.add_client(4);
    nop(&mut uring, client, 1).expect("room");
    uring.remove_client(client);
}

/// A ring that could open files would be a way past the filter of system calls.
#[test]
fn other_requests_than_ours_are_refused_by_the_kernel() {
    for mut uring in rings("other_requests_than_ours_are_refused_by_the_kernel") {
        let client = uring.add_client(4);
        let path = c"/proc/version";
        let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr()).build();
        let socket = opcode::Socket::new(libc::AF_UNIX, libc::SOCK_STREAM, 0).build();
        for (token, entry) in [open, socket].into_iter().enumerate() {
            // SAFETY: the path is a constant.
            unsafe { uring.push(client, token as u32, entry) }.expect("room");
        }
        nop(&mut uring, client, 9).expect("room");
        uring.wait_for(client);
        let mut completions = Vec::new();
        uring.take(client, &mut completions);
        let results: Vec<_> = completions.iter().map(|completion| completion.result).collect();
        assert_eq!(results, [-libc::EACCES, -libc::EACCES, 0], "{:?}", uring.mode());
        let again = uring.ring.submitter().register_eventfd(uring.event.as_raw_fd());
        assert_eq!(again.unwrap_err().raw_os_error(), Some(libc::EACCES));
    }
}
