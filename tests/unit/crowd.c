/* Processes that load at once, counted by the names that they hold. */
#include "base/sys.h"
#include "harness.h"
#include "machine/crowd.h"
#include "runtime/internal.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Names of this test alone, where the kernel gives it a network namespace of its own; else others
 * may hold some, and differences are what counts. */
static uint32_t
alone(void)
{
	static int tried;
	if (!tried++ && unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0)
		printf("# no network namespace of its own\n");
	return oh_crowd_count();
}

TEST(a_name_counts_while_it_is_held)
{
	uint32_t before = alone();
	int first = oh_crowd_join(), second = oh_crowd_join();
	CHECK(first >= 0 && second >= 0);
	CHECK_EQ(oh_crowd_count(), before + 2);
	oh_crowd_leave(first);
	CHECK_EQ(oh_crowd_count(), before + 1);
	oh_crowd_leave(second);
	CHECK_EQ(oh_crowd_count(), before);
}

TEST(a_process_that_dies_gives_its_name_back)
{
	uint32_t before = alone();
	int pipes[2], status;
	char byte;
	CHECK_EQ(pipe(pipes), 0);
	pid_t child = fork();
	if (child == 0) {
		if (oh_crowd_join() < 0 || write(pipes[1], "x", 1) != 1)
			_exit(1);
		pause();
	}
	CHECK_EQ(read(pipes[0], &byte, 1), 1);
	CHECK_EQ(oh_crowd_count(), before + 1);
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	CHECK_EQ(oh_crowd_count(), before);
	close(pipes[0]);
	close(pipes[1]);
}

TEST(when_all_names_are_taken_one_more_has_none)
{
	int held[OH_CROWD_MOST], count = 0;
	alone();
	while (count < OH_CROWD_MOST && (held[count] = oh_crowd_join()) >= 0)
		count++;
	CHECK_EQ(oh_crowd_count(), OH_CROWD_MOST);
	CHECK_EQ(oh_crowd_join(), -1);
	while (count-- > 0)
		oh_crowd_leave(held[count]);
}

static int
no_socket(int domain, int type, int protocol)
{
	errno = EPERM;
	return -1;
}

TEST(without_sockets_nobody_is_counted)
{
	struct oh_sys real = oh_sys;
	oh_sys.socket = no_socket;
	int fd = oh_crowd_join();
	uint32_t count = oh_crowd_count();
	oh_crowd_leave(fd);
	oh_sys = real;
	CHECK_EQ(fd, -1);
	CHECK_EQ(count, 0);
}

TEST(what_all_rings_hold_together_is_bounded)
{
	struct onehop_runtime runtime = {.block_bytes = 16 << 20};
	struct oh_lane lane = {.made = 4};
	static const uint32_t want[] = {4, 4, 4, 2, 2, 2};
	for (uint32_t n = 0; n < sizeof want / sizeof want[0]; n++) {
		runtime.crowd = n;
		CHECK_EQ(oh_lane_share(&runtime, &lane), want[n]);
	}
	lane.made = 1;
	CHECK_EQ(oh_lane_share(&runtime, &lane), 1);
	runtime.block_bytes = 4 << 20;
	lane.made = 16;
	CHECK_EQ(oh_lane_share(&runtime, &lane), 6);
}

int
main(int argc, char **argv)
{
	return test_main(argc, argv);
}
