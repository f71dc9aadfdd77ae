/* A name is an abstract address of a Unix datagram socket: bound, it is taken; it is free again when
 * its process ends, however that comes. Whether it is taken shows in connecting to it. Nothing is
 * ever sent. Such names are of a network namespace, so processes in containers of different ones do
 * not see each other, and each then takes the whole of its ring. A child of fork keeps a name that
 * its parent held until it ends or executes something.
 */
#include "machine/crowd.h"

#include "base/sys.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

static socklen_t
name_of(uint32_t index, struct sockaddr_un *address)
{
	*address = (struct sockaddr_un){.sun_family = AF_UNIX};
	int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1,
			      "onehop/loading/%u", index);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static int
make_socket(void)
{
	return oh_sys.socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

int
oh_crowd_join(void)
{
	struct sockaddr_un address;
	int fd = make_socket();
	for (uint32_t i = 0; fd >= 0 && i < OH_CROWD_MOST; i++) {
		socklen_t bytes = name_of(i, &address);
		if (oh_sys.bind(fd, (struct sockaddr *)&address, bytes) == 0)
			return fd;
		if (errno != EADDRINUSE)
			break;
	}
	if (fd >= 0)
		oh_sys.close(fd);
	return -1;
}

void
oh_crowd_leave(int fd)
{
	if (fd >= 0)
		oh_sys.close(fd);
}

uint32_t
oh_crowd_count(void)
{
	struct sockaddr_un address;
	uint32_t taken = 0;
	int fd = make_socket();
	for (uint32_t i = 0; fd >= 0 && i < OH_CROWD_MOST; i++) {
		socklen_t bytes = name_of(i, &address);
		taken += oh_sys.connect(fd, (struct sockaddr *)&address, bytes) == 0;
	}
	if (fd >= 0)
		oh_sys.close(fd);
	return taken;
}
