# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Makes records in C: ``make_in_c`` gives a dataclass a constructor that fills its slots (decision 0087).

Python's own way to an instance costs a call of ``type``, a dict of the keywords and a call of the ``__init__`` that
dataclasses compile: 0.5 to 1.3 µs. A leader makes a dozen records for a request. Here the keywords are matched with the
fields by identity, because names in code are interned, and each value goes into its slot.

What this does not understand goes the ordinary way, which says what is wrong: too many arguments, unknown and missing
names, names that are not interned.
"""

from cpython.dict cimport PyDict_GetItem
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject, PyTypeObject
from cpython.tuple cimport PyTuple_GET_SIZE

cdef extern from *:
    """
    #include "structmember.h"

    /* Where the instances of cls hold the slot of that name; 0 if it has no such slot. */
    static Py_ssize_t slot_offset(PyObject *cls, PyObject *name) {
        PyObject *found = PyObject_GetAttr(cls, name);
        Py_ssize_t offset = 0;
        if (found == NULL) {
            PyErr_Clear();
            return 0;
        }
        if (Py_IS_TYPE(found, &PyMemberDescr_Type) && ((PyMemberDescrObject *)found)->d_member->type == T_OBJECT_EX)
            offset = ((PyMemberDescrObject *)found)->d_member->offset;
        Py_DECREF(found);
        return offset;
    }

    /* A new instance, with empty slots. */
    static inline PyObject *allocated(PyObject *cls) {
        return ((PyTypeObject *)cls)->tp_alloc((PyTypeObject *)cls, 0);
    }

    /* The call of a class that has no constructor of its own. */
    static PyObject *called_as_ever(PyObject *cls, PyObject *const *given, size_t flagged, PyObject *names) {
        Py_ssize_t positional = PyVectorcall_NARGS(flagged), number;
        PyObject *made = NULL, *keywords = NULL, *arguments = PyTuple_New(positional);
        if (arguments == NULL)
            return NULL;
        for (number = 0; number < positional; number++)
            PyTuple_SET_ITEM(arguments, number, Py_NewRef(given[number]));
        if (names != NULL) {
            keywords = PyDict_New();
            for (number = 0; keywords != NULL && number < PyTuple_GET_SIZE(names); number++)
                if (PyDict_SetItem(keywords, PyTuple_GET_ITEM(names, number), given[positional + number]) < 0)
                    Py_CLEAR(keywords);
        }
        if (names == NULL || keywords != NULL)
            made = PyType_Type.tp_call(cls, arguments, keywords);
        Py_DECREF(arguments);
        Py_XDECREF(keywords);
        return made;
    }

    static void give_constructor(PyObject *cls, void *constructor) {
        ((PyTypeObject *)cls)->tp_vectorcall = (vectorcallfunc)constructor;
    }
    """
    Py_ssize_t slot_offset(object cls, object name)
    object allocated(object cls)
    object called_as_ever(object cls, PyObject** given, size_t flagged, PyObject* names)
    void give_constructor(object cls, void* constructor)

cdef extern from "Python.h":
    Py_ssize_t PyVectorcall_NARGS(size_t flagged)
    PyObject* PyTuple_GET_ITEM(PyObject* names, Py_ssize_t number)
    void Py_INCREF(PyObject* owned)

cdef struct Field:
    PyObject* name
    PyObject* default  # NULL: there is none
    PyObject* factory  # of the default; NULL: there is none
    Py_ssize_t offset


cdef class Layout:
    """The fields of a class, in order."""

    cdef tuple owned
    cdef Field* fields
    cdef Py_ssize_t size
    cdef Py_ssize_t positional
    """How many of the fields may be given by position: the first ones."""

    def __cinit__(self, type cls, tuple fields, Py_ssize_t positional):
        self.owned, self.size, self.positional = fields, len(fields), positional
        self.fields = <Field*>PyMem_Calloc(max(self.size, 1), sizeof(Field))
        if self.fields == NULL:
            raise MemoryError(f"{self.size} fields of {cls.__name__}")
        for number, (name, default, factory) in enumerate(fields):
            field = &self.fields[number]
            field.name = <PyObject*>name
            field.default = NULL if default is None else <PyObject*>default[0]
            field.factory = NULL if factory is None else <PyObject*>factory
            field.offset = slot_offset(cls, name)
            if field.offset == 0:
                raise TypeError(f"{cls.__name__} has no slot {name}")

    def __dealloc__(self):
        PyMem_Free(self.fields)


cdef dict _LAYOUTS = {}


cdef inline PyObject** slot_of(object record, Field* field) noexcept:
    return <PyObject**>(<char*><PyObject*>record + field.offset)


cdef inline void fill(PyObject** slot, PyObject* value) noexcept:
    Py_INCREF(value)
    slot[0] = value


cdef object constructed(object cls, PyObject** given, size_t flagged, PyObject* names):
    """Return an instance; called in place of ``cls(...)``."""
    cdef PyObject* found = PyDict_GetItem(_LAYOUTS, cls)
    if found == NULL:
        return called_as_ever(cls, given, flagged, names)
    cdef Layout layout = <Layout>found
    cdef Field* fields = layout.fields
    cdef Py_ssize_t positional = PyVectorcall_NARGS(flagged)
    cdef Py_ssize_t keywords = 0 if names == NULL else PyTuple_GET_SIZE(<object>names)
    cdef Py_ssize_t number, at, following = positional
    cdef PyObject* name
    cdef PyObject** slot
    if positional > layout.positional or positional + keywords > layout.size:
        return called_as_ever(cls, given, flagged, names)
    record = allocated(cls)
    for number in range(positional):
        fill(slot_of(record, &fields[number]), given[number])
    for number in range(keywords):
        name = PyTuple_GET_ITEM(names, number)
        at = following  # most callers name fields in their order
        while at < layout.size and fields[at].name != name:
            at += 1
        if at == layout.size:
            at = 0
            while at < following and fields[at].name != name:
                at += 1
            if at == following:
                return called_as_ever(cls, given, flagged, names)
        slot = slot_of(record, &fields[at])
        if slot[0] != NULL:
            return called_as_ever(cls, given, flagged, names)
        fill(slot, given[positional + number])
        following = at + 1
    if positional + keywords < layout.size:
        for at in range(layout.size):
            slot = slot_of(record, &fields[at])
            if slot[0] != NULL:
                continue
            if fields[at].default != NULL:
                fill(slot, fields[at].default)
            elif fields[at].factory != NULL:
                made = (<object>fields[at].factory)()
                fill(slot, <PyObject*>made)
            else:
                return called_as_ever(cls, given, flagged, names)
    return record


def make_in_c(type cls not None, fields, Py_ssize_t positional):
    """Let the instances of a class be made here.

    ``fields`` has, in order, the name of each field, its default in a tuple of one (None: it has none), and the factory
    of its default (None: it has none). The first ``positional`` ones may be given by position. Raises TypeError if a
    field has no slot.
    """
    _LAYOUTS[cls] = Layout(cls, tuple(fields), positional)
    give_constructor(cls, <void*>constructed)
