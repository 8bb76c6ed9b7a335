//! Values that a sidecore's pollers and channels share: one of each type.

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

/// A typed map: the sidecore's io_uring, its endpoint and so on. Clones share the map. Also usable
/// without a sidecore, in a simulation or a test.
#[derive(Clone, Default)]
pub struct Services {
    by_type: Rc<RefCell<HashMap<TypeId, Rc<dyn Any>>>>,
}

impl Services {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Offers `value` to everyone on this sidecore, in place of an earlier value of its type.
    pub fn insert<T: 'static>(&self, value: Rc<RefCell<T>>) {
        self.by_type.borrow_mut().insert(TypeId::of::<T>(), value);
    }

    /// The value of type `T`, if there is one. Look it up once and keep it: not for the hot path.
    pub fn get<T: 'static>(&self) -> Option<Rc<RefCell<T>>> {
        let value = Rc::clone(self.by_type.borrow().get(&TypeId::of::<T>())?);
        Some(value.downcast().expect("stored under its own type"))
    }

    /// Takes the value of type `T` out of the map. Pollers that looked it up earlier keep it.
    pub fn remove<T: 'static>(&self) -> Option<Rc<RefCell<T>>> {
        let value = self.by_type.borrow_mut().remove(&TypeId::of::<T>())?;
        Some(value.downcast().expect("stored under its own type"))
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Services({})", self.by_type.borrow().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_of_each_type_is_shared_by_clones() {
        let services = Services::new();
        assert!(services.get::<u32>().is_none());
        services.insert(Rc::new(RefCell::new(1u32)));
        services.insert(Rc::new(RefCell::new("text".to_owned())));
        let clone = services.clone();
        *clone.get::<u32>().unwrap().borrow_mut() += 1;
        assert_eq!(*services.get::<u32>().unwrap().borrow(), 2);
        services.insert(Rc::new(RefCell::new(9u32)));
        assert_eq!(*clone.get::<u32>().unwrap().borrow(), 9);
        assert_eq!(*clone.get::<String>().unwrap().borrow(), "text");
        assert!(clone.remove::<u32>().is_some() && services.get::<u32>().is_none());
    }
}
