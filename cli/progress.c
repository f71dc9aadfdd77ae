/* The progress bar: percent, bytes and rate on one line of a terminal, gone at the end.
 *
 * Nothing is ever drawn into a pipe or a file. A line is one write, and shorter than the terminal
 * is wide, so that it can be erased.
 */
#include "progress.h"
#include "out.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define BAR 24

uint64_t
now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void
progress_begin(struct progress *progress, const char *what, int quiet)
{
	const char *term = getenv("TERM");
	progress->on = !quiet && isatty(STDERR_FILENO) && !(term && strcmp(term, "dumb") == 0);
	progress->drawn = 0;
	progress->what = what;
	progress->begin_ns = now_ns();
}

static size_t
columns(void)
{
	struct winsize size;
	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
		return 80;
	return size.ws_col;
}

void
progress_draw(struct progress *progress, uint64_t done, uint64_t total)
{
	char line[160], bar[BAR + 1], of[SIZE_TEXT], all[SIZE_TEXT];
	if (!progress->on)
		return;
	double part = total ? (double)done / (double)total : 1;
	double ns = (double)(now_ns() - progress->begin_ns);
	size_t wide = columns(), filled = (size_t)(part * BAR);
	memset(bar, '.', BAR);
	memset(bar, '#', filled < BAR ? filled : BAR);
	bar[BAR] = '\0';
	int used = snprintf(line, sizeof line, "%s [%s] %3d %%  %s of %s  %.2f GB/s",
			    progress->what, bar, (int)(part * 100), size_text(of, done),
			    size_text(all, total), ns > 0 ? (double)done / ns : 0);
	if (used < 0 || (size_t)used >= wide)
		used = snprintf(line, sizeof line, "%3d %%", (int)(part * 100));
	dprintf(STDERR_FILENO, "\r%.*s\033[K", used, line);
	progress->drawn = 1;
}

void
progress_note(struct progress *progress, const char *text)
{
	int most = (int)columns() - 1;
	if (!progress->on)
		return;
	dprintf(STDERR_FILENO, "\r%.*s\033[K", most, text);
	progress->drawn = 1;
}

void
progress_end(struct progress *progress)
{
	if (progress->drawn)
		dprintf(STDERR_FILENO, "\r\033[K");
	progress->drawn = 0;
}
