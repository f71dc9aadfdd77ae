/* The one place that handles signals.
 *
 * The handler only sets a flag, which every loop that lasts looks at: the calls that cancel a
 * transfer take locks. Its second run gives the signal its default effect again and raises it, so
 * that a process that is stuck still dies.
 */
#include "signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

/* Lock-free, and looked at by every thread. */
static _Atomic int caught;

static void
on_signal(int number)
{
	if (atomic_exchange(&caught, 1)) {
		signal(number, SIG_DFL);
		raise(number);
	}
}

/* Who starts us in the background may have it ignored: that stays. */
static void
catch_one(int number, const struct sigaction *action)
{
	struct sigaction before;
	if (sigaction(number, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
		sigaction(number, action, NULL);
}

void
signals_catch(void)
{
	struct sigaction action = {.sa_handler = on_signal};
	sigemptyset(&action.sa_mask);
	/* No SA_RESTART: a wait for a child process or a pipe must come back. */
	catch_one(SIGINT, &action);
	catch_one(SIGTERM, &action);
	catch_one(SIGHUP, &action);
	signal(SIGPIPE, SIG_IGN);
}

int
signals_caught(void)
{
	return atomic_load(&caught);
}
