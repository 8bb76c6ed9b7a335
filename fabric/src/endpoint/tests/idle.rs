//! The cost of a look that finds nothing: no store to the region, and no system call.

use super::*;
use crate::shared::stop;

/// Many times as many looks as there are between anything that is done now and then.
const LOOKS: u32 = 4 * LOOKS_FOR_LIVES;

/// Two that have met and have nothing to do any more.
fn idle() -> World {
    let mut world = World::usual(2);
    let [from, to] = [world.address(0), world.address(1)];
    let mut got = [0; 8];
    ask(&mut world.endpoints[1], &receive(Some(from), 1), &mut got);
    send(&mut world.endpoints[0], &message(to, 1), &[7; 8]).expect("room");
    // The head is told when nothing has come for a while.
    world.settle();
    assert_eq!((ended(&mut world.endpoints[1]).len(), got), (1, [7; 8]));
    assert_eq!(ended(&mut world.endpoints[0]).len(), 1);
    world
}

#[test]
fn an_empty_look_stores_nothing_to_the_region() {
    let mut world = idle();
    for endpoint in &mut world.endpoints {
        let looked = stop::after(0, || (0..LOOKS).all(|_| endpoint.completion().is_none()));
        assert_eq!(looked, Some(true));
    }
    let to = world.address(1);
    let sent = stop::after(0, || send(&mut world.endpoints[0], &message(to, 1), &[7; 8]));
    assert_eq!(sent, None, "who stores something is stopped");
}

/// In a process that the kernel kills at any system call but `exit`, `read` and `write`.
#[test]
fn an_empty_look_makes_no_system_call() {
    let ended = |look: fn(&mut Endpoint)| {
        let mut world = idle();
        // SAFETY: the child has this thread alone; it allocates nothing, takes no lock, and ends
        // by itself.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "a process");
        if child == 0 {
            // SAFETY: these change this process alone, and end it.
            unsafe {
                libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT);
                look(&mut world.endpoints[1]);
                // The call that ends one thread, which is one of those that are left.
                libc::syscall(libc::SYS_exit, 7);
            }
        }
        let mut status = 0;
        // SAFETY: our own child, and room for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status
    };
    let status = ended(|endpoint| (0..LOOKS).for_each(|_| endpoint.progress()));
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
    let status = ended(|_| std::thread::yield_now());
    assert_eq!((libc::WIFSIGNALED(status), libc::WTERMSIG(status)), (true, libc::SIGKILL));
}
