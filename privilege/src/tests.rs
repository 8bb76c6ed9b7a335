//! Each restriction in a process of its own, since no restriction can be taken back: this test
//! binary is started again.

use std::fs::File;
use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use rustix::process::DumpableBehavior;
use rustix::thread::Uid;
use sidecore::foreign;

use super::*;

mod interfaces;

/// A user that owns nothing.
const NOBODY: u32 = 65534;

/// Says to a test that it runs in the child, and gives its directory.
const CHILD: &str = "VRIO_PRIVILEGE_TEST_HOME";

/// Runs the test of that name alone in a child process.
fn in_child(name: &str, home: &Path) -> Output {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "--nocapture", "--test-threads=1"]);
    child.arg(format!("tests::{name}"));
    child.env(CHILD, home).output().unwrap()
}

fn child_home() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

fn assert_success(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}\n{errors}", output.status);
    assert!(text.contains("1 passed"), "the test was not run: {text}");
}

fn config(home: &Path, more: &str) -> Config {
    let text = r#"
name = "n"
control = "HOME/run/n.control"
[directories]
volumes = "HOME/volumes"
sockets = "HOME/run"
[[volume]]
name = "a"
backend = { file = "a.img", size = "1MiB" }
"#;
    // A table ends the keys of the file itself, so it comes last.
    let (first, last) = if more.starts_with('[') { ("", more) } else { (more, "") };
    let text = format!("{first}{text}{last}").replace("HOME", home.to_str().unwrap());
    Config::parse(&home.join("etc/n.toml"), &text).unwrap()
}

/// A home with files of a node, and with files that a node must not reach.
fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    for name in ["volumes", "etc", "other"] {
        std::fs::create_dir(home.path().join(name)).unwrap();
    }
    std::fs::write(home.path().join("etc/n.toml"), "").unwrap();
    std::fs::write(home.path().join("other/secret"), "x").unwrap();
    home
}

/// Whether this kernel can do what the test is about.
fn has_landlock() -> bool {
    // SAFETY: the call with this flag only tells its version.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, 1) };
    version > 0
}

#[test]
fn only_the_configured_directories_are_left() {
    let Some(path) = child_home() else {
        if !has_landlock() {
            return println!("SKIP only_the_configured_directories_are_left: no Landlock here");
        }
        let home = home();
        let name = "only_the_configured_directories_are_left";
        return assert_success(&in_child(name, home.path()));
    };
    let inside = |name: &str| path.join(name);
    let service = UnixListener::bind(inside("other/service.sock")).unwrap();
    // No user is configured, so the node stays the user of the tests, perhaps root.
    drop(&config(&path, "")).unwrap();
    File::create(inside("volumes/b.img")).unwrap().set_len(4096).unwrap();
    std::fs::create_dir_all(inside("volumes/.vrio/a")).unwrap();
    std::fs::write(inside("volumes/.vrio/a/new"), "1").unwrap();
    std::fs::rename(inside("volumes/.vrio/a/new"), inside("volumes/.vrio/a/old")).unwrap();
    let listener = UnixListener::bind(inside("run/a.sock")).unwrap();
    UnixStream::connect(inside("run/a.sock")).unwrap();
    std::mem::drop(listener);
    std::fs::remove_file(inside("run/a.sock")).unwrap();
    std::fs::read(inside("etc/n.toml")).unwrap();
    std::fs::read("/proc/locks").unwrap();
    // The socket for signals is made later than this.
    foreign::ready().unwrap();
    let kick = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    assert!(foreign::is_eventfd(kick.as_fd()));
    let refused = |result: io::Result<File>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
    };
    // Landlock does not restrict this: a socket outside is as open as the mode of its file.
    UnixStream::connect(inside("other/service.sock")).unwrap();
    service.accept().unwrap();
    refused(File::open(inside("other/service.sock")));
    refused(File::open(inside("other/secret")));
    refused(File::open("/etc/passwd"));
    refused(File::create(inside("etc/new")));
    refused(File::options().write(true).open(inside("etc/n.toml")));
    refused(File::create(inside("other/new")));
    refused(File::open("/dev/null"));
    // A node does not remove a volume's file, nor a file that is not its own.
    assert!(std::fs::remove_file(inside("volumes/b.img")).is_err());
    assert!(UnixListener::bind(inside("etc/a.sock")).is_err());
    // New threads inherit the restrictions of the thread that starts them.
    let path = inside("other/secret");
    refused(std::thread::spawn(move || File::open(path)).join().unwrap());
}

#[test]
fn system_calls_of_a_running_node_are_left() {
    let Some(path) = child_home() else {
        let name = "system_calls_of_a_running_node_are_left";
        return assert_success(&in_child(name, home().path()));
    };
    // Threads that are there already are filtered as well.
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let earlier = std::thread::spawn(move || {
        wait.recv().unwrap();
        UdpSocket::bind("127.0.0.1:0").map_err(|error| error.raw_os_error())
    });
    foreign::ready().unwrap();
    filter(&config(&path, "")).unwrap();
    // A disk that is added needs these calls.
    let listener = UnixListener::bind(path.join("a.sock")).unwrap();
    let client = UnixStream::connect(path.join("a.sock")).unwrap();
    listener.accept().unwrap();
    client.set_nonblocking(true).unwrap();
    let file = File::create(path.join("volumes/a.img")).unwrap();
    file.set_len(1 << 20).unwrap();
    file.sync_all().unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    rustix::fs::memfd_create("inflight", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let name = c"user.vrio.test";
    let tried = rustix::fs::fsetxattr(&file, name, b"1", rustix::fs::XattrFlags::empty());
    assert_ne!(tried, Err(rustix::io::Errno::PERM));
    let kick = rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let flags = rustix::io::ReadWriteFlags::NOWAIT;
    let mut count = [0; 8];
    let into = &mut [io::IoSliceMut::new(&mut count)];
    let drained = rustix::io::preadv2(&kick, into, u64::MAX, flags);
    assert_ne!(drained, Err(rustix::io::Errno::PERM));
    // More requests than the kernel keeps.
    (0..10_000).for_each(|_| foreign::ring(kick.as_fd()).unwrap());
    assert!(foreign::is_eventfd(kick.as_fd()) && foreign::silence(kick.as_fd()));
    rustix::fs::fstatfs(&file).unwrap();
    let big = vec![1u8; 64 << 20];
    assert_eq!(std::thread::spawn(move || big.len()).join().unwrap(), 64 << 20);
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Calls that no code of the node makes any more.
    go.send(()).unwrap();
    assert_eq!(earlier.join().unwrap().unwrap_err(), Some(libc::EPERM));
    let refused = TcpListener::bind("127.0.0.1:0").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
    assert_eq!(Command::new("/bin/true").status().unwrap_err().raw_os_error(), Some(libc::EPERM));
    // SAFETY: a mapping of its own, which no code uses.
    let code = unsafe {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE);
        libc::mmap(std::ptr::null_mut(), 4096, prot, flags | libc::MAP_ANONYMOUS, -1, 0)
    };
    assert_eq!(code, libc::MAP_FAILED, "memory that can be run");
    // SAFETY: null is answered by EFAULT, if the call gets so far.
    let code = unsafe { libc::syscall(libc::SYS_io_uring_setup, 8, std::ptr::null::<u8>()) };
    assert_eq!((code, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EPERM)));
}

#[test]
fn a_tap_of_the_nodes_user_is_opened_by_a_running_node_and_no_other() {
    let name = "a_tap_of_the_nodes_user_is_opened_by_a_running_node_and_no_other";
    let Some(path) = child_home() else {
        if !rustix::process::geteuid().is_root() {
            return println!("SKIP {name}: not root");
        }
        let home = home();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(home.path(), open).unwrap();
        rustix::fs::chown(home.path(), Some(Uid::from_raw(NOBODY)), None).unwrap();
        return assert_success(&in_child(name, home.path()));
    };
    // SAFETY: this process has no other thread that works, and gets a network of its own.
    let is_apart = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    let ip = |words: &str| {
        let status = Command::new("ip").args(words.split(' ')).status();
        status.is_ok_and(|status| status.success())
    };
    let made = |tap: &str, user: u32| ip(&format!("tuntap add {tap} mode tap user {user}"));
    if !is_apart || !made("vrio0", NOBODY) || !made("vrio1", 1) || !ip("link set vrio0 up") {
        return println!("SKIP {name}: no network namespace, or no tap");
    }
    let nobody = Uid::from_raw(NOBODY);
    rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
    let config = config(&path, "[[network]]\nname = \"blue\"\nuplink = \"tap:vrio0\"\n");
    drop(&config).unwrap();
    filter(&config).unwrap();
    net::uplink::tap::open_frames("vrio0").unwrap();
    for other in ["vrio1", "vrio2"] {
        let error = net::uplink::tap::open_frames(other).unwrap_err().to_string();
        assert!(error.contains(&format!("interface {other}: Operation not permitted")), "{error}");
    }
}

#[test]
fn another_program_ends_the_process() {
    let Some(path) = child_home() else {
        let output = in_child("another_program_ends_the_process", home().path());
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{}: {text}", output.status);
        return assert!(!text.contains("it runs on"));
    };
    filter(&config(&path, "")).unwrap();
    let arguments = [c"/bin/true".as_ptr(), std::ptr::null()];
    // SAFETY: a list that ends in null, of strings that end in zero.
    unsafe { libc::execv(arguments[0], arguments.as_ptr()) };
    println!("it runs on");
}

#[test]
fn nothing_is_given_up_when_that_is_asked_for() {
    let Some(path) = child_home() else {
        let name = "nothing_is_given_up_when_that_is_asked_for";
        return assert_success(&in_child(name, home().path()));
    };
    let config = config(&path, "privileges = \"keep\"\n");
    drop(&config).unwrap();
    filter(&config).unwrap();
    File::open(path.join("other/secret")).unwrap();
    UdpSocket::bind("127.0.0.1:0").unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    assert!(status.contains("Seccomp:\t0") && status.contains("NoNewPrivs:\t0"), "{status}");
    assert_eq!(rustix::process::dumpable_behavior(), Ok(DumpableBehavior::Dumpable));
}

#[test]
fn no_core_file_is_left_and_a_node_still_reads_its_own_proc() {
    let Some(path) = child_home() else {
        let name = "no_core_file_is_left_and_a_node_still_reads_its_own_proc";
        let home = home();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(home.path(), open).unwrap();
        if rustix::process::geteuid().is_root() {
            rustix::fs::chown(home.path(), Some(Uid::from_raw(NOBODY)), None).unwrap();
        }
        return assert_success(&in_child(name, home.path()));
    };
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(rustix::process::dumpable_behavior(), Ok(DumpableBehavior::Dumpable));
    // The process starts as another user, so that no change of user forbids core files by itself.
    if is_root {
        let nobody = Uid::from_raw(NOBODY);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable).unwrap();
    }
    drop(&config(&path, "")).unwrap();
    assert_eq!(rustix::process::dumpable_behavior(), Ok(DumpableBehavior::NotDumpable));
    for file in ["/proc/self/status", "/proc/self/maps", "/proc/locks"] {
        assert!(std::fs::read(file).is_ok(), "{file}");
    }
}

#[test]
fn a_user_that_is_not_there_or_root_is_named() {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIP a_user_that_is_not_there_or_root_is_named: not root");
    }
    let home = home();
    let error = drop(&config(home.path(), "user = \"no-such-user\"\n")).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("n.toml:1: \"user\": there is no user \"no-such-user\""), "{text}");
    let error = drop(&config(home.path(), "user = \"root\"\n")).unwrap_err();
    assert!(error.to_string().contains("is root; name a user"), "{error}");
    assert!(rustix::process::geteuid().is_root());
}

#[test]
fn a_directory_that_the_user_may_not_use_is_named_with_the_way_out() {
    let Some(path) = child_home() else {
        if !rustix::process::geteuid().is_root() {
            let test = "a_directory_that_the_user_may_not_use_is_named_with_the_way_out";
            return println!("SKIP {test}: not root");
        }
        let name = "a_directory_that_the_user_may_not_use_is_named_with_the_way_out";
        let home = home();
        // The way to the directory is free, the directory itself is not.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(home.path(), open).unwrap();
        std::fs::create_dir(home.path().join("run")).unwrap();
        return assert_success(&in_child(name, home.path()));
    };
    let error = drop(&config(&path, "user = \"nobody\"\n")).unwrap_err().to_string();
    assert!(error.contains("run\" as the user \"nobody\""), "{error}");
    assert!(error.contains("chown nobody"), "{error}");
}
