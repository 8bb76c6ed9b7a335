//! Volumes into which streams are received.

use super::medium::Medium;
use crate::api::{PoolChange, PoolError, VolumeId};
use crate::map::PoolVolume;
use pool_stream::VOLUME_BLOCKS_MAX;
use pool_stream::{SnapshotOrigin, VolumeReceive};

fn stream(name: &str, blocks: u64, onto: Option<VolumeId>) -> VolumeReceive {
    let origin = |id| SnapshotOrigin { pool: [0xab; 16], id, generation: 4, at_s: 77 };
    let base = onto.map(|onto| origin(onto.0));
    VolumeReceive { name: name.to_owned(), origin: origin(9), base, onto, blocks, next_block: 0 }
}

fn receive_new(name: &str, receive: VolumeReceive) -> PoolChange {
    PoolChange::ReceiveNew { volume_name: name.to_owned(), receive }
}

fn snapshot(volume: VolumeId, name: &str) -> PoolChange {
    PoolChange::Snapshot { volumes: vec![volume], name: name.to_owned(), at_s: 0 }
}

fn entry(medium: &Medium, id: VolumeId) -> PoolVolume {
    medium.map.volumes().into_iter().find(|it| it.id == id).expect("it is listed")
}

#[test]
fn a_received_snapshot_is_complete_or_not_there() {
    let mut medium = Medium::new(11, 512, 128);
    let receive = stream("monday", 100, None);
    let volume = medium.change(receive_new("a", receive.clone()));
    assert_eq!(entry(&medium, volume).receive, Some(receive.clone()));
    medium.write(volume, 7, 70);
    let at = |next_block| VolumeReceive { next_block, ..receive.clone() };
    let more = |next_block| PoolChange::Receive { volume, receive: at(next_block) };
    let other = VolumeReceive { blocks: 99, ..at(60) };
    let done = PoolChange::Received { volume };
    medium.change(more(50));
    for (change, error) in [
        (done.clone(), PoolError::Incomplete { next_block: 50, blocks: 100 }),
        (more(49), PoolError::NotReceived(volume)),
        (more(101), PoolError::BeyondEnd),
        (PoolChange::Receive { volume, receive: other }, PoolError::NotReceived(volume)),
        (snapshot(volume, "t"), PoolError::BeingReceived(volume)),
    ] {
        assert_eq!(medium.map.check(&change), Err(error), "{change:?}");
    }
    medium.change(more(100));
    medium.change(PoolChange::Resize { volume, blocks: 101 });
    let wrong_size = PoolError::Incomplete { next_block: 100, blocks: 100 };
    assert_eq!(medium.map.check(&done), Err(wrong_size));
    medium.change(PoolChange::Resize { volume, blocks: 100 });
    let found = medium.change(done.clone());
    let found = entry(&medium, found);
    assert_eq!((found.name.as_str(), found.at_s, found.of), ("monday", 77, Some(volume)));
    assert_eq!(found.identity([1; 16]), receive.origin);
    assert_eq!(entry(&medium, volume).receive, None);
    assert_eq!(medium.map.check(&done), Err(PoolError::NotReceived(volume)));
    let again = PoolChange::Receive { volume, receive: at(100) };
    assert_eq!(medium.map.check(&again), Err(PoolError::NotReceived(volume)));
}

#[test]
fn a_difference_needs_a_volume_that_is_as_its_base() {
    let mut medium = Medium::new(12, 512, 128);
    let volume = medium.change(PoolChange::Create { name: "a".to_owned(), blocks: 100 });
    medium.write(volume, 3, 30);
    let base = medium.change(snapshot(volume, "s"));
    let begin = |name: &str, onto| {
        let receive = stream(name, 120, onto);
        PoolChange::Receive { volume, receive }
    };
    let none = Some(VolumeId(77));
    for (change, error) in [
        (begin("t", None), PoolError::NotReceived(volume)),
        (begin("t", none), PoolError::NoVolume(VolumeId(77))),
        (begin("s", Some(base)), PoolError::NameTaken("s".to_owned())),
        (begin("t", Some(volume)), PoolError::WrongKind(volume, "a volume: name a snapshot")),
    ] {
        assert_eq!(medium.map.check(&change), Err(error), "{change:?}");
    }
    // The same content, written again.
    medium.write(volume, 3, 30);
    let changed = Err(PoolError::ChangedSinceBase(volume));
    assert_eq!(medium.map.check(&begin("t", Some(base))), changed);
    medium.change(PoolChange::Rollback { volume, snapshot: base });
    medium.change(PoolChange::Resize { volume, blocks: 101 });
    assert_eq!(medium.map.check(&begin("t", Some(base))), changed);
    medium.change(PoolChange::Rollback { volume, snapshot: base });
    let later = medium.change(snapshot(volume, "later"));
    medium.change(begin("t", Some(base)));
    medium.write(volume, 5, 50);
    // Back to the base, or to any snapshot, is the end of the stream.
    medium.change(PoolChange::Rollback { volume, snapshot: base });
    assert_eq!(entry(&medium, volume).receive, None);
    assert_eq!(medium.map.check(&begin("t", Some(later))), changed);
    medium.change(begin("t", Some(base)));
    medium.change(PoolChange::Clear { volume });
    assert_eq!(entry(&medium, volume).receive, None);
    medium.change(PoolChange::Rollback { volume, snapshot: base });
    medium.change(begin("t", Some(base)));
    medium.change(PoolChange::Remove { volume });
    assert!(medium.map.volumes().iter().all(|it| it.receive.is_none()));
}

#[test]
fn a_stream_with_impossible_fields_is_refused() {
    let medium = Medium::new(13, 512, 128);
    for wrong in [
        stream("", 1, None),
        stream("../x", 1, None),
        stream("t", 0, None),
        stream("t", VOLUME_BLOCKS_MAX + 1, None),
        VolumeReceive { next_block: 2, ..stream("t", 1, None) },
    ] {
        assert!(medium.map.check(&receive_new("a", wrong.clone())).is_err(), "{wrong:?}");
    }
    assert!(medium.map.check(&receive_new(".a", stream("t", 1, None))).is_err());
}

#[test]
fn an_identity_is_written_as_the_format_says() {
    let text = serde_json::to_string(&stream("t", 1, None).origin).expect("JSON");
    let wanted = "{\"pool\":\"abababababababababababababababab\",\"id\":9,\"generation\":4,\
                  \"at_s\":77}";
    assert_eq!(text, wanted);
    assert_eq!(serde_json::from_str::<SnapshotOrigin>(&text).ok().map(|it| it.id), Some(9));
    for wrong in ["", "ab", "+babababababababababababababababab", "\u{e9}"] {
        let text = wanted.replace("abababababababababababababababab", wrong);
        assert!(serde_json::from_str::<SnapshotOrigin>(&text).is_err(), "{wrong}");
    }
}
