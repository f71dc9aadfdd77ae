/* Runs a command in a place like a strict container. As root.
 *
 * usage: enter [-g CGROUP]... [-m] [-b NAME=FOLDER]... [-l LIMIT=NUMBER]... [-u USER] [-s]
 *              COMMAND...
 *
 * -g joins a cgroup by its folder. -m makes the root read-only and puts empty folders over /sys,
 * /run, /proc/pressure and /tmp; -b shows a folder as /tmp/NAME there. -l sets a limit (memlock,
 * nofile, nproc, as). -u becomes that user. -s has the kernel refuse io_uring.
 *
 * What it was told to take away it then tries to use, and ends with 70 if that works. 77: it cannot
 * be done here, with the reason on standard error; else the command's own status.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CANNOT 77
#define LEAKS 70
#define MOST 8

/* The same on every architecture. */
#define IO_URING_FIRST 425
#define IO_URING_LAST 427

struct place {
	const char *groups[MOST];
	const char *shown[MOST]; /* NAME=FOLDER */
	int folders[MOST];
	int group_count, shown_count;
	int mounts, no_uring;
	unsigned user; /* 0: stay root */
};

static void
cannot(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(CANNOT);
}

static void
leaks(const char *what)
{
	fprintf(stderr, "the sandbox leaks: %s\n", what);
	exit(LEAKS);
}

static void
join(const char *group)
{
	char path[512];
	snprintf(path, sizeof path, "%s/cgroup.procs", group);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, "0", 1) != 1)
		cannot(path);
	close(fd);
}

/* ------------------------------------------------------------------------------------- mounts */

static void
cover(const char *folder, const char *options)
{
	if (mount("empty", folder, "tmpfs", MS_NOSUID | MS_NODEV, options) && errno != ENOENT)
		cannot(folder);
}

/* Folders are held open first, since they may lie in what is covered. */
static void
hold_shown(struct place *place)
{
	for (int i = 0; i < place->shown_count; i++) {
		const char *folder = strchr(place->shown[i], '=');
		place->folders[i] = folder ? open(folder + 1, O_PATH | O_CLOEXEC) : -1;
		if (place->folders[i] < 0)
			cannot(place->shown[i]);
	}
}

static void
show(const struct place *place)
{
	char from[64], to[256];
	for (int i = 0; i < place->shown_count; i++) {
		const char *name = place->shown[i];
		snprintf(from, sizeof from, "/proc/self/fd/%d", place->folders[i]);
		snprintf(to, sizeof to, "/tmp/%.*s", (int)strcspn(name, "="), name);
		if (mkdir(to, 0755) || mount(from, to, NULL, MS_BIND, NULL) ||
		    mount(NULL, to, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL))
			cannot(name);
	}
}

static void
change_mounts(struct place *place)
{
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		cannot("a mount namespace of its own");
	hold_shown(place);
	if (mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL))
		cannot("a read-only root");
	cover("/tmp", "mode=1777,size=16m");
	cover("/sys", "mode=555,size=4k");
	cover("/run", "mode=755,size=4k");
	cover("/proc/pressure", "mode=555,size=4k");
	show(place);
	if (chdir("/tmp"))
		cannot("/tmp");
}

/* ------------------------------------------------------------------------------ limits, seccomp */

static void
limit(const char *word)
{
	static const struct {
		const char *name;
		int resource;
	} known[] = {{"memlock", RLIMIT_MEMLOCK}, {"nofile", RLIMIT_NOFILE},
		     {"nproc", RLIMIT_NPROC}, {"as", RLIMIT_AS}};
	size_t length = strcspn(word, "=");
	for (size_t i = 0; word[length] && i < sizeof known / sizeof known[0]; i++) {
		if (strlen(known[i].name) != length || strncmp(known[i].name, word, length) != 0)
			continue;
		rlim_t most = strtoull(word + length + 1, NULL, 10);
		if (setrlimit(known[i].resource, &(struct rlimit){most, most}))
			cannot(word);
		return;
	}
	errno = EINVAL;
	cannot(word);
}

static void
refuse_uring(void)
{
	struct sock_filter steps[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, IO_URING_FIRST, 0, 2),
		BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, IO_URING_LAST, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = {.len = sizeof steps / sizeof steps[0], .filter = steps};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
		cannot("a seccomp filter");
}

static void
become(unsigned user)
{
	if (setgroups(0, NULL) || setresgid(user, user, user) || setresuid(user, user, user))
		cannot("another user");
}

static void
try_what_is_gone(const struct place *place)
{
	if (place->no_uring && (syscall(IO_URING_FIRST, 1, NULL) >= 0 || errno != EPERM))
		leaks("io_uring is not refused");
	if (place->mounts && (open("/onehop-test", O_WRONLY | O_CREAT, 0600) >= 0 || errno != EROFS))
		leaks("the root can be written to");
	if (place->mounts && (access("/sys/devices", F_OK) == 0 || access("/proc/pressure/io", F_OK) == 0))
		leaks("/sys or /proc/pressure can be seen");
	if (place->user && (getuid() != place->user || setuid(0) == 0))
		leaks("root's rights are still there");
}

int
main(int argc, char **argv)
{
	struct place place = {0};
	const char *limits[MOST];
	int letter, limit_count = 0;
	while ((letter = getopt(argc, argv, "+g:mb:l:u:s")) != -1) {
		if (letter == 'g' && place.group_count < MOST)
			place.groups[place.group_count++] = optarg;
		else if (letter == 'm')
			place.mounts = 1;
		else if (letter == 'b' && place.shown_count < MOST)
			place.shown[place.shown_count++] = optarg;
		else if (letter == 'l' && limit_count < MOST)
			limits[limit_count++] = optarg;
		else if (letter == 'u')
			place.user = (unsigned)strtoul(optarg, NULL, 10);
		else if (letter == 's')
			place.no_uring = 1;
		else
			return 2;
	}
	if (optind == argc)
		return 2;
	for (int i = 0; i < place.group_count; i++)
		join(place.groups[i]);
	if (place.mounts)
		change_mounts(&place);
	if (place.user)
		become(place.user);
	if (place.no_uring)
		refuse_uring();
	try_what_is_gone(&place);
	for (int i = 0; i < limit_count; i++)
		limit(limits[i]);
	execv(argv[optind], argv + optind);
	perror(argv[optind]);
	return 127;
}
