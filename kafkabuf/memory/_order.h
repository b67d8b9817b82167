/* The order of two stores to memory that outlives the process.
 *
 * A process may be killed between any two instructions. What its earlier instructions have stored to a shared mapping
 * of a file is in the file then, and what its later instructions would have stored is not. So the order of the
 * program's instructions is the order in which a reader of the file finds them. The compiler alone could change it: the
 * fence forbids that, and emits no instruction.
 */
#ifndef KB_ORDER_H
#define KB_ORDER_H

#define kb_in_order() __atomic_signal_fence(__ATOMIC_SEQ_CST)

#endif
