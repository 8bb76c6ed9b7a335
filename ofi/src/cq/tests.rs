use super::*;
use crate::abi::{FI_ETRUNC, FI_RECV, FI_TAGGED};
use crate::wait::WaitState;
use fabric::Address;

fn event(op_context: u64, failed: Option<c_int>) -> QueueEvent {
    let flags = FI_RECV | FI_TAGGED;
    QueueEvent {
        entry: CqEntry { op_context, flags, len: 8, buf: 0, data: 0, tag: op_context },
        source: None,
        failed: failed.map(|error| OperationFailure { error, own: 1, missing_bytes: 3 }),
    }
}

/// A queue with these events and without endpoints, so that no more events come.
fn queue_with(events: &[QueueEvent]) -> (ProviderState, usize) {
    let mut state = ProviderState::new();
    let number = state.queues.insert(CompletionQueue::new(WaitState::unused()));
    for &event in events {
        state.queues.of(number).push(event);
    }
    (state, number)
}

fn contexts(state: &mut ProviderState, number: usize, count: usize) -> (ReadOutcome, Vec<u64>) {
    let mut contexts = Vec::new();
    let read = read(state, number, count, |place, event, _| {
        assert_eq!(place, contexts.len());
        contexts.push(event.entry.op_context);
    });
    (read, contexts)
}

#[test]
fn every_format_is_the_beginning_of_the_longest() {
    let bytes = [
        FI_CQ_FORMAT_UNSPEC,
        FI_CQ_FORMAT_CONTEXT,
        FI_CQ_FORMAT_MSG,
        FI_CQ_FORMAT_DATA,
        FI_CQ_FORMAT_TAGGED,
    ];
    assert_eq!(bytes.map(entry_bytes), [8, 8, 24, 40, 48].map(Some));
    assert_eq!(entry_bytes(FI_CQ_FORMAT_TAGGED + 1), None);
}

#[test]
fn entries_come_in_order_and_no_more_than_asked_for() {
    let (mut state, queue) = queue_with(&[1, 2, 3].map(|context| event(context, None)));
    assert_eq!(contexts(&mut state, queue, 2), (ReadOutcome::Some(2), vec![1, 2]));
    let nothing = ReadOutcome::None { should_yield: false };
    assert_eq!(contexts(&mut state, queue, 0), (nothing, vec![]), "they wait for a read with room");
    assert_eq!(contexts(&mut state, queue, 2), (ReadOutcome::Some(1), vec![3]));
    assert_eq!(contexts(&mut state, queue, 2), (ReadOutcome::None { should_yield: false }, vec![]));
}

#[test]
fn an_error_keeps_its_place_among_the_events() {
    let events = [event(1, None), event(2, Some(FI_ETRUNC)), event(3, None)];
    let (mut state, queue) = queue_with(&events);
    assert!(state.queues.of(queue).next_failed().is_none(), "an event is before it");
    assert_eq!(contexts(&mut state, queue, 8), (ReadOutcome::Some(1), vec![1]));
    assert_eq!(contexts(&mut state, queue, 8), (ReadOutcome::Failed, vec![]));
    assert_eq!(
        contexts(&mut state, queue, 8),
        (ReadOutcome::Failed, vec![]),
        "until the program reads the error"
    );
    let (told, failed) = state.queues.of(queue).next_failed().expect("it is first");
    assert_eq!((told, failed), (events[1], events[1].failed.expect("it is an error")));
    assert_eq!(contexts(&mut state, queue, 8), (ReadOutcome::Some(1), vec![3]));
    assert!(state.queues.of(queue).next_failed().is_none());
}

#[test]
fn a_long_series_of_empty_reads_asks_whether_others_want_the_core() {
    let (mut state, queue) = queue_with(&[]);
    let empty = |state: &mut ProviderState| match contexts(state, queue, 1).0 {
        ReadOutcome::None { should_yield } => should_yield,
        other => panic!("{other:?}"),
    };
    let first = (1..).find(|_| empty(&mut state)).expect("some day");
    assert!(first > 1);
    state.queues.of(queue).push(event(1, None));
    assert_eq!(contexts(&mut state, queue, 1).0, ReadOutcome::Some(1));
    assert!(!empty(&mut state), "the count begins anew");
}

#[test]
fn each_endpoint_is_asked_and_each_is_first_in_turn() {
    let mut queue = CompletionQueue::new(WaitState::unused());
    queue.endpoints = vec![4, 7, 9];
    let round =
        |queue: &CompletionQueue| (0..5).map_while(|step| queue.endpoint(step)).collect::<Vec<_>>();
    assert_eq!(round(&queue), [4, 7, 9]);
    queue.first = 2;
    assert_eq!(round(&queue), [9, 4, 7]);
}

#[test]
fn a_source_has_its_vectors_number_as_long_as_there_is_one() {
    let mut state = ProviderState::new();
    let address = Address { host: 1, incarnation: 1, slot: 7 };
    let vector = state.vectors.insert(AddressVector::default());
    let from = QueueEvent { source: Some((address, vector)), ..event(1, None) };
    assert_eq!(source(&from, &mut state.vectors), Some(FI_ADDR_NOTAVAIL), "it has no number");
    let number = state.vectors.of(vector).insert(address).expect("room");
    assert_eq!(source(&from, &mut state.vectors), Some(number));
    assert_eq!(source(&event(1, None), &mut state.vectors), None);
    state.vectors.remove(vector);
    assert_eq!(source(&from, &mut state.vectors), None);
}
