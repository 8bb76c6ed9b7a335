//! Reading another process's memory: the one copy of a large message.
//!
//! The kernel allows it to a process that may trace the other one: usually, processes of one user,
//! or of one container. A read of the sender's proof in the same call as its bytes finds out
//! whether the kernel does, and whether the process is the right one at all (numbers of processes
//! are used again, and differ between containers).

use crate::cell::Offer;
use crate::parts::{MessageParts, PARTS_MAX};

/// Why nothing, or not all, was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotCopied {
    /// This process's memory cannot be read, or the process is not the sender of the offer.
    Refused,
    /// These bytes cannot be; others may.
    Unreadable,
}

const PROOF_BYTES: usize = 8;

/// Reads an offer's first bytes, as many as `into` has room for, and it has no more room than the
/// offer has bytes.
pub(crate) fn read(pid: u32, offer: &Offer, into: &MessageParts) -> Result<(), NotCopied> {
    // None: it is a process inside of a VM.
    let pid = libc::pid_t::try_from(pid).ok().filter(|&pid| pid > 0).ok_or(NotCopied::Refused)?;
    let mut done = 0;
    while done < into.bytes() {
        let rest = into.cut(done, usize::MAX);
        let mut proof = [0_u8; PROOF_BYTES];
        let (local, local_count) = local_of(&rest, &mut proof);
        let (remote, remote_count) = remote_of(offer, done);
        // SAFETY: `local` describes `proof` and memory that is writable until the receive ends (the
        // maker of `into` promised that), `remote` is checked by the kernel; both arrays have as
        // many entries as is said.
        let read = unsafe {
            libc::process_vm_readv(
                pid,
                local.as_ptr(),
                local_count,
                remote.as_ptr(),
                remote_count,
                0,
            )
        };
        // None when it was refused, which is -1.
        let read = usize::try_from(read).map_err(|_| NotCopied::Refused)?;
        if read < PROOF_BYTES || u64::from_le_bytes(proof) != offer.proof {
            return Err(NotCopied::Refused);
        }
        if read == PROOF_BYTES {
            return Err(NotCopied::Unreadable);
        }
        done += read - PROOF_BYTES;
    }
    Ok(())
}

type CopyRow = ([libc::iovec; PARTS_MAX + 1], libc::c_ulong);

const NOTHING: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

fn local_of(rest: &MessageParts, proof: &mut [u8; PROOF_BYTES]) -> CopyRow {
    let mut row = [NOTHING; PARTS_MAX + 1];
    row[0] = libc::iovec { iov_base: proof.as_mut_ptr().cast(), iov_len: PROOF_BYTES };
    for (entry, part) in row[1..].iter_mut().zip(rest.as_slice()) {
        *entry = libc::iovec { iov_base: part.start.cast(), iov_len: part.bytes };
    }
    (row, 1 + rest.as_slice().len() as libc::c_ulong)
}

/// The other process's addresses, from byte number `skip` of the message on. The kernel stops where
/// the local side is full.
fn remote_of(offer: &Offer, mut skip: usize) -> CopyRow {
    let mut row = [NOTHING; PARTS_MAX + 1];
    let address = |at: u64| std::ptr::without_provenance_mut(at as usize);
    row[0] = libc::iovec { iov_base: address(offer.proof_at), iov_len: PROOF_BYTES };
    let mut count = 1;
    for &(start, bytes) in &offer.parts[..offer.count] {
        let skipped = skip.min(bytes);
        skip -= skipped;
        if skipped < bytes {
            let start = address(start.wrapping_add(skipped as u64));
            row[count] = libc::iovec { iov_base: start, iov_len: bytes - skipped };
            count += 1;
        }
    }
    (row, count as libc::c_ulong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryPiece;

    /// Offers some of this process's own memory to itself.
    fn offer(proof: &u64, parts: &[&[u8]]) -> Offer {
        let mut offer = Offer {
            operation: 0,
            bytes: parts.iter().map(|part| part.len()).sum(),
            proof_at: std::ptr::from_ref(proof) as u64,
            proof: *proof,
            count: parts.len(),
            parts: [(0, 0); PARTS_MAX],
        };
        for (entry, part) in offer.parts.iter_mut().zip(parts) {
            *entry = (part.as_ptr() as u64, part.len());
        }
        offer
    }

    fn into(buffer: &mut [u8]) -> MessageParts {
        let (left, right) = buffer.split_at_mut(buffer.len() / 3);
        let part = |bytes: &mut [u8]| MemoryPiece { start: bytes.as_mut_ptr(), bytes: bytes.len() };
        MessageParts::new(&[part(left), part(right)]).expect("two")
    }

    #[test]
    fn pieces_are_read_into_pieces() {
        let (proof, pid) = (77, std::process::id());
        let offer = offer(&proof, &[b"abc", b"", b"defghij"]);
        for len in 0..=10 {
            let mut buffer = vec![0; len];
            assert_eq!(read(pid, &offer, &into(&mut buffer)), Ok(()));
            assert_eq!(buffer, b"abcdefghij"[..len]);
        }
        assert_eq!(remote_of(&offer, 5).1, 2, "the proof, and what is left");
        assert_eq!(remote_of(&offer, 5).0[1].iov_len, 5);
    }

    #[test]
    fn a_wrong_process_and_wrong_memory_are_told_apart() {
        let (proof, pid) = (77, std::process::id());
        let sound = offer(&proof, &[b"abc"]);
        let mut buffer = [0; 3];
        let into = into(&mut buffer);
        assert_eq!(read(0, &sound, &into), Err(NotCopied::Refused));
        assert_eq!(read(u32::MAX, &sound, &into), Err(NotCopied::Refused));
        let lie = Offer { proof: 78, ..sound };
        assert_eq!(read(pid, &lie, &into), Err(NotCopied::Refused));
        let lie = Offer { proof_at: 8, ..sound };
        assert_eq!(read(pid, &lie, &into), Err(NotCopied::Refused));
        let mut lie = sound;
        lie.parts[0].0 = 4096;
        assert_eq!(read(pid, &lie, &into), Err(NotCopied::Unreadable));
    }
}
