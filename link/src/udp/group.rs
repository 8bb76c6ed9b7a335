//! Which datagrams share a trip through the kernel's network stack.
//!
//! UDP_SEGMENT lets one message carry several datagrams to one address: all of one length, only the
//! last may be shorter. The kernel (or the network card) cuts them apart as late as it can.

use std::net::SocketAddr;

/// The most datagrams in one group: the limit of kernels before 6.9 (UDP_MAX_SEGMENTS).
pub(super) const GROUP_DATAGRAMS_MAX: usize = 64;

/// The most bytes in one group: an IP packet's 65535 less the headers of IPv6 (40) and UDP (8).
pub(super) const GROUP_BYTES_MAX: usize = 65_487;

/// The most datagrams in one system call; sendmmsg takes no more than 1024 messages.
pub(super) const CALL_DATAGRAMS_MAX: usize = 1024;

/// Datagrams that wait, in order. On the wire each is `head` followed by `body`.
pub(super) trait Outgoing {
    fn count(&self) -> usize;
    fn to(&self, index: usize) -> SocketAddr;
    fn head(&self, index: usize) -> &[u8];
    fn body(&self, index: usize) -> &[u8];

    fn len_bytes(&self, index: usize) -> usize {
        self.head(index).len() + self.body(index).len()
    }
}

/// Consecutive datagrams that go as one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) first: usize,
    pub(super) count: usize,
    /// Length of each datagram but perhaps the last.
    pub(super) segment_bytes: usize,
    pub(super) bytes: usize,
}

/// Cuts what waits into `groups`. Datagrams longer than `segment_bytes_max` go alone.
pub(super) fn plan(outgoing: &impl Outgoing, segment_bytes_max: usize, groups: &mut Vec<Group>) {
    groups.clear();
    let count = outgoing.count().min(CALL_DATAGRAMS_MAX);
    let mut first = 0;
    while first < count {
        let group = group_at(outgoing, first, count, segment_bytes_max);
        groups.push(group);
        first += group.count;
    }
}

fn group_at(outgoing: &impl Outgoing, first: usize, end: usize, segment_bytes_max: usize) -> Group {
    let segment_bytes = outgoing.len_bytes(first);
    let mut group = Group { first, count: 1, segment_bytes, bytes: segment_bytes };
    if segment_bytes == 0 || segment_bytes > segment_bytes_max {
        return group;
    }
    let to = outgoing.to(first);
    for index in first + 1..end.min(first + GROUP_DATAGRAMS_MAX) {
        let next_bytes = outgoing.len_bytes(index);
        let fits = group.bytes + next_bytes <= GROUP_BYTES_MAX;
        if !fits || next_bytes > segment_bytes || next_bytes == 0 || outgoing.to(index) != to {
            break;
        }
        group.count += 1;
        group.bytes += next_bytes;
        if next_bytes < segment_bytes {
            break;
        }
    }
    group
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Datagrams in vectors.
    pub(in crate::udp) struct DatagramVectors(
        pub(in crate::udp) Vec<(SocketAddr, Vec<u8>, Vec<u8>)>,
    );

    impl Outgoing for DatagramVectors {
        fn count(&self) -> usize {
            self.0.len()
        }

        fn to(&self, index: usize) -> SocketAddr {
            self.0[index].0
        }

        fn head(&self, index: usize) -> &[u8] {
            &self.0[index].1
        }

        fn body(&self, index: usize) -> &[u8] {
            &self.0[index].2
        }
    }

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    /// Plans datagrams given as (port, length); gives the counts of the groups.
    fn counts(datagrams: &[(u16, usize)], segment_bytes_max: usize) -> Vec<usize> {
        let listed = datagrams
            .iter()
            .map(|&(port, len)| (address(port), vec![0; len.min(10)], vec![0; len - len.min(10)]))
            .collect();
        let (listed, mut groups) = (DatagramVectors(listed), Vec::new());
        plan(&listed, segment_bytes_max, &mut groups);
        let mut next = 0;
        for group in &groups {
            assert_eq!(group.first, next);
            let lengths = (group.first..group.first + group.count).map(|i| listed.len_bytes(i));
            assert_eq!(group.bytes, lengths.sum::<usize>());
            next += group.count;
        }
        assert_eq!(next, datagrams.len().min(CALL_DATAGRAMS_MAX));
        groups.iter().map(|group| group.count).collect()
    }

    #[test]
    fn equal_lengths_to_one_address_share_and_a_shorter_one_ends_the_group() {
        assert_eq!(counts(&[(1, 100), (1, 100), (1, 100)], 1500), [3]);
        assert_eq!(counts(&[(1, 100), (1, 100), (1, 50), (1, 50)], 1500), [3, 1]);
        assert_eq!(counts(&[(1, 100), (1, 101)], 1500), [1, 1]);
        assert_eq!(counts(&[(1, 100), (2, 100), (2, 100), (1, 100)], 1500), [1, 2, 1]);
        assert_eq!(counts(&[], 1500), []);
    }

    #[test]
    fn groups_are_bounded_in_datagrams_and_in_bytes() {
        assert_eq!(counts(&[(1, 100); 150], 1500), [64, 64, 22]);
        assert_eq!(counts(&[(1, 1472); 100], 1500), [44, 44, 12]);
        assert_eq!(counts(&[(1, 65_507); 2], 65_507), [1, 1]);
        assert_eq!(counts(&[(1, 32_743); 3], 65_507), [2, 1]);
        assert_eq!(counts(&[(1, 8); CALL_DATAGRAMS_MAX + 1], 1500), [64; 16]);
    }

    #[test]
    fn long_and_empty_datagrams_go_alone() {
        assert_eq!(counts(&[(1, 1501), (1, 1501), (1, 9), (1, 9)], 1500), [1, 1, 2]);
        assert_eq!(counts(&[(1, 100), (1, 100)], 0), [1, 1]);
        assert_eq!(counts(&[(1, 0), (1, 0), (1, 5), (1, 0)], 1500), [1, 1, 1, 1]);
    }
}
