# cython: language_level=3
"""A quick way into the methods that are called for every record: their arguments without a reference to each.

A method with a quick way is an ordinary `def`, which has the signature, the docstring and the errors, and which calls a
cdef function with its arguments. The quick way calls the same cdef function.
"""

from cpython.object cimport PyObject


cdef extern from "cpython/_arguments.h":
    # The arguments of a call: `count` by place, then one for each of `names`, a tuple or NULL.
    ctypedef object (*kb_method)(object self, PyObject** given, Py_ssize_t count, PyObject* names)
    ctypedef object (*kb_method8)(object, object, object, object, object, object, object, object, object)

    ctypedef struct kb_quick:
        pass

    # Put the arguments in the order of the parameters, of which there are `room`, a constant. None stands for a missing
    # argument; the first parameter is required. The references are borrowed. False: call `by_cython`.
    bint arrange "kb_arrange"(
        kb_quick* quick, Py_ssize_t room, PyObject** given, Py_ssize_t count, PyObject* names, PyObject** arguments
    ) noexcept
    # Make `way_in` the way into the method `name` of an extension type, whose parameters are given. An error of the
    # class `deliberate` leaves the method with one frame of ours in its traceback.
    int replace_way_in "kb_replace_way_in"(
        kb_quick* quick, object type, const char* name, tuple parameters, kb_method way_in, object deliberate
    ) except -1
    # Go the way in that Cython has made.
    object by_cython "kb_by_cython"(
        kb_quick* quick, object self, PyObject** given, Py_ssize_t count, PyObject* names
    )
    # Call `function` with `self` and eight arranged arguments.
    object apply8 "kb_apply8"(kb_method8 function, object self, PyObject** arguments)
