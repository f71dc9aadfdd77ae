/* How many processes on this machine load large models right now. Each of them holds a name while it
 * does, so that the others can count it: their rings share one last-level cache. */
#ifndef OH_CROWD_H
#define OH_CROWD_H

#include <stdint.h>

/* More are not told apart. */
#define OH_CROWD_MOST 16

/* Takes a name: a descriptor to give to oh_crowd_leave(), or -1 if there is none to be had. */
int oh_crowd_join(void);
void oh_crowd_leave(int fd);

/* The names that are taken, one's own too; 0 if it cannot be told. About 10 us. Any thread. */
uint32_t oh_crowd_count(void);

#endif
