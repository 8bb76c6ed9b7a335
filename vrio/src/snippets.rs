//! Settings that make a VMM use a disk or a nic: options for QEMU, elements for libvirt.

use std::fmt::Write;

use node::status::{DiskStatus, NicStatus};

/// Which VMM.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Vmm {
    /// Options of QEMU's command line.
    Qemu,
    /// Elements of a libvirt domain.
    Libvirt,
}

impl Vmm {
    /// The text to copy; its comments name the parts to change.
    pub(crate) fn snippet(self, disk: &DiskStatus) -> String {
        match self {
            Self::Qemu => qemu(disk),
            Self::Libvirt => libvirt(disk),
        }
    }

    /// The same for a nic.
    pub(crate) fn nic_snippet(self, nic: &NicStatus) -> String {
        match self {
            Self::Qemu => qemu_nic(nic),
            Self::Libvirt => libvirt_nic(nic),
        }
    }
}

/// The memory of the guest in the snippet for QEMU, which must be the same as its `-m`.
const MEMORY: &str = "2G";

/// The MTU that QEMU's device has unless told.
const MTU_USUAL: u16 = 1500;

fn qemu(disk: &DiskStatus) -> String {
    let (id, queues) = (id(&disk.name), disk.queues);
    let shared = qemu_shared(&id, &disk.socket);
    format!("{shared}-device vhost-user-blk-pci,chardev={id},num-queues={queues}\n")
}

fn qemu_nic(nic: &NicStatus) -> String {
    let (id, pairs, mac) = (id(&nic.name), nic.pairs, &nic.mac);
    let shared = qemu_shared(&id, &nic.socket);
    let several = match pairs {
        1 => String::new(),
        // One for each queue, one for changes of the configuration, one for the control queue.
        pairs => format!(",mq=on,vectors={}", 2 * pairs + 2),
    };
    let mtu = if nic.mtu > MTU_USUAL { format!(",host_mtu={}", nic.mtu) } else { String::new() };
    format!(
        "{shared}-netdev vhost-user,id={id}-net,chardev={id},queues={pairs} \\\n\
         -device virtio-net-pci,netdev={id}-net,mac={mac}{mtu}{several}\n"
    )
}

/// The guest's memory, and the socket.
fn qemu_shared(id: &str, socket: &str) -> String {
    // In an option a comma ends a value, unless it is doubled.
    let path = socket.replace(',', ",,");
    let chardev = quoted(&format!("socket,id={id},path={path},reconnect-ms=100"));
    format!(
        "# Once for a guest, whose memory has to be shared; size as in -m. \
         QEMU before 9.2: reconnect=1.\n\
         -object memory-backend-memfd,id=vrio-memory,size={MEMORY},share=on \\\n\
         -machine memory-backend=vrio-memory \\\n\
         -chardev {chardev} \\\n"
    )
}

/// The elements about a guest's memory, and a note about QEMU's user: without the right to open the
/// socket, a start does not fail but waits.
const LIBVIRT_MEMORY: &str = "<!-- `virsh start` hangs as long as QEMU's user \
    (libvirt-qemu, qemu) may not\n     open the socket: put it into the socket's group. -->\n\
    <!-- Once for a guest, whose memory has to be shared. -->\n\
    <memoryBacking>\n  <source type='memfd'/>\n  <access mode='shared'/>\n</memoryBacking>\n";

fn libvirt_nic(nic: &NicStatus) -> String {
    let (path, mac, pairs) = (escaped(&nic.socket), &nic.mac, nic.pairs);
    // libvirt takes no <mtu> for this type of interface: the MTU is set inside of the guest.
    let mtu = match nic.mtu {
        MTU_USUAL => String::new(),
        mtu => format!("<!-- In the guest: ip link set dev NAME mtu {mtu} -->\n"),
    };
    format!(
        "{LIBVIRT_MEMORY}{mtu}\
         <!-- Among the <devices>. -->\n\
         <interface type='vhostuser'>\n  <mac address='{mac}'/>\n  \
         <source type='unix' path='{path}' mode='client'>\n    \
         <reconnect enabled='yes' timeout='1'/>\n  </source>\n  \
         <model type='virtio'/>\n  <driver queues='{pairs}'/>\n\
         </interface>\n"
    )
}

fn libvirt(disk: &DiskStatus) -> String {
    let (path, queues) = (escaped(&disk.socket), disk.queues);
    format!(
        "{LIBVIRT_MEMORY}\
         <!-- Among the <devices>; target is what is free. -->\n\
         <disk type='vhostuser' device='disk'>\n  \
         <driver name='qemu' type='raw' queues='{queues}'/>\n  \
         <source type='unix' path='{path}'>\n    \
         <reconnect enabled='yes' timeout='1'/>\n  </source>\n  \
         <target dev='vda' bus='virtio'/>\n</disk>\n"
    )
}

/// An identifier as QEMU allows it: letters, digits, `-`, `.` and `_`, after a letter.
fn id(name: &str) -> String {
    let allowed = |it: char| it.is_ascii_alphanumeric() || matches!(it, '-' | '.' | '_');
    let name: String = name.chars().map(|it| if allowed(it) { it } else { '_' }).collect();
    format!("vrio-{name}")
}

/// As a shell takes it for one word.
fn quoted(word: &str) -> String {
    let plain = |it: char| it.is_ascii_alphanumeric() || "-_./,=:".contains(it);
    if word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// As an attribute of XML in single quotes.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for it in text.chars() {
        match it {
            '&' | '<' | '>' | '\'' | '"' => {
                write!(escaped, "&#{};", u32::from(it)).expect("a string takes all");
            }
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_are_what_the_vmm_allows() {
        assert_eq!(id("alice root/1"), "vrio-alice_root_1");
        assert_eq!(quoted("path=/run/a,b"), "path=/run/a,b");
        assert_eq!(quoted("path=/run/it's"), "'path=/run/it'\\''s'");
        assert_eq!(escaped("/run/<a>&'b'"), "/run/&#60;a&#62;&#38;&#39;b&#39;");
    }
}
