use random::Random;
use volume::Incarnation;
use volume::name::Name;

use super::*;

fn record(epoch: u64) -> Record {
    let incarnation = Incarnation([epoch as u8; 16]);
    let replaced = [epoch; 8];
    Record {
        epoch,
        claimant: !epoch,
        incarnation,
        replaced,
        node: Name::new("vm1"),
        ..Record::default()
    }
}

fn full_book() -> NoteBook {
    let mut book = NoteBook { size_bytes: u64::MAX - 511, ..NoteBook::new([7; 16]) };
    book.floor = u64::MAX;
    for at in 0..NOTE_RECORDS_MAX {
        let name = format!("{at:0>63}");
        book.records.insert(name, record(at as u64));
    }
    book
}

fn serving(book: NoteBook) -> Arc<NoteRecords> {
    let records = NoteRecords::new("alice", Waker::none());
    records.begin(book);
    records
}

#[test]
fn the_largest_book_is_a_note_and_comes_back() {
    let book = full_book();
    let note = book.to_note();
    assert!(note.len() <= NOTE_BYTES_MAX, "{}", note.len());
    assert_eq!(NoteBook::of(&note), Ok(Some(book.clone())));
    assert_eq!(NoteBook::of(&[]), Ok(None));
    let empty = NoteBook::new([1; 16]);
    assert_eq!(NoteBook::of(&empty.to_note()), Ok(Some(empty.clone())));
    let sized = NoteBook { size_bytes: 1 << 40, ..empty };
    assert_eq!(NoteBook::of(&sized.to_note()), Ok(Some(sized.clone())));
    let odd = NoteBook { size_bytes: 4097, ..sized };
    let error = NoteBook::of(&odd.to_note()).unwrap_err();
    assert_eq!(error, MalformedNote("its size is none, or no whole sectors"));
    // A record more is refused where notes are read, and where records are written.
    let mut more = book.clone();
    more.records.insert("x".to_owned(), record(1));
    assert_eq!(NoteBook::of(&more.to_note()), Err(MalformedNote("it has too many records")));
    let records = serving(book);
    let error = records.write("x", record(1)).result().unwrap().unwrap_err();
    assert!(error.to_string().contains("it is full"), "{error}");
    assert!(records.write(&format!("{:0>63}", 0), record(1)).result().is_none(), "a known one");
    let error = records.write(&"x".repeat(64), record(1)).result().unwrap().unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
}

/// A note of a hostile member is an error or the note of a book: a book has one form.
#[test]
fn hostile_notes_are_refused_by_name() {
    let mut book = NoteBook::new([7; 16]);
    book.floor = 9;
    for name in ["alice", "bob", "carol"] {
        book.records.insert(name.to_owned(), record(3));
    }
    let note = book.to_note();
    let mut random = Random::new(5);
    let mut refused = 0;
    for at in 0..note.len() {
        for bytes in [note[..at].to_vec(), {
            let mut other = note.clone();
            other[at] ^= 1 << random.below(8);
            other
        }] {
            match NoteBook::of(&bytes) {
                Ok(Some(read)) => assert_eq!(read.to_note(), bytes),
                Ok(None) => assert!(bytes.is_empty()),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > note.len(), "{refused}");
    for _ in 0..2000 {
        let bytes: Vec<u8> = (0..random.below(900)).map(|_| random.draw() as u8).collect();
        let bytes = [&NOTE_MAGIC[..], &bytes].concat();
        if let Ok(read) = NoteBook::of(&bytes) {
            assert_eq!(read.unwrap().to_note(), bytes);
        }
    }
}

#[test]
fn writes_of_a_while_are_one_note_and_end_together() {
    let records = serving(NoteBook::new([7; 16]));
    assert!(!records.has_news() && records.take().is_none());
    let first = records.write("alice", record(1));
    let second = records.write("bob", record(2));
    assert!(records.has_news() && first.result().is_none());
    let note = records.take().expect("there is news");
    let third = records.forget(&["alice".to_owned()], 1);
    // One note at a time, so that they are durable in their order.
    assert!(!records.has_news() && records.take().is_none());
    records.kept();
    assert_eq!((first.result(), second.result()), (Some(Ok(())), Some(Ok(()))));
    assert!(third.result().is_none());
    let read = NoteBook::of(&note).unwrap().unwrap();
    assert_eq!(read.records.keys().collect::<Vec<_>>(), ["alice", "bob"]);
    let note = records.take().expect("there is more news");
    let read = NoteBook::of(&note).unwrap().unwrap();
    assert_eq!((read.records.len(), read.floor, read.number), (1, 1, [7; 16]));
    records.kept();
    assert_eq!(third.result(), Some(Ok(())));
    assert_eq!((records.floor().unwrap(), records.load().unwrap().len()), (1, 1));
}

/// A write that was not durable when another node took over is an error, however far it was.
#[test]
fn writes_end_as_errors_when_another_node_serves() {
    let records = serving(NoteBook::new([7; 16]));
    let sent = records.write("alice", record(1));
    records.take().expect("there is news");
    let waiting = records.write("bob", record(2));
    records.end("io2 serves the volume");
    records.kept();
    for ticket in [sent, waiting, records.write("carol", record(3))] {
        let error = ticket.result().expect("it has ended").unwrap_err();
        assert!(error.to_string().contains("io2 serves the volume"), "{error}");
    }
    assert!(records.take().is_none() && records.load().unwrap().is_empty());
    // Nothing of the earlier term is in the next one.
    records.begin(NoteBook::new([8; 16]));
    assert!(!records.has_news() && records.load().unwrap().is_empty());
}
