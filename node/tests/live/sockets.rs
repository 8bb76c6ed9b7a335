//! The owners and modes of the sockets of disks and nics, with any umask of the process.

use std::os::unix::fs::MetadataExt;

use rustix::fs::Mode;
use virtio::driver::RequestStatus as Outcome;

use super::{LOCAL, start_file, write_file};
use crate::common::{Guest, Home};

fn access(home: &Home, socket: &str) -> (u32, u32, u32) {
    let found = home.path(socket).metadata().unwrap();
    (found.mode() & 0o7777, found.uid(), found.gid())
}

#[test]
fn sockets_have_the_files_owners_with_any_umask() {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // Root may give them to any user, other users only to themselves.
    let (user, group) = if uid == 0 { (4711, 4712) } else { (uid, gid) };
    for umask in [0o000, 0o077] {
        rustix::process::umask(Mode::from_raw_mode(umask));
        let home = Home::new();
        let text = |mode: &str| {
            format!(
                "{LOCAL}[[disk]]\nsocket = \"a.sock\"\nvolume = \"a\"\nsocket-user = {user}\n\
                 socket-group = {group}\nsocket-mode = \"{mode}\"\n[[network]]\nname = \"blue\"\n\
                 [[nic]]\nsocket = \"n.sock\"\nnetwork = \"blue\"\nmac = \"52:54:00:00:00:01\"\n\
                 socket-group = {group}\nsocket-mode = \"0600\"\n"
            )
        };
        let node = start_file(&home, "n.toml", &text("0660"));
        assert_eq!(access(&home, "a.sock"), (0o660, user, group));
        assert_eq!(access(&home, "n.sock"), (0o600, uid, group));
        write_file(&home, "n.toml", &text("0606"));
        node.reload().unwrap();
        assert_eq!(access(&home, "a.sock"), (0o606, user, group));
        // And the socket serves.
        let mut guest = Guest::connect(home.path("a.sock"), 1);
        assert_eq!(guest.write(0, 1, 1), Outcome::Ok);
        drop(guest);
        node.stop();
    }
}
