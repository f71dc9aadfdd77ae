/* Ctrl-C. */
#ifndef CLI_SIGNALS_H
#define CLI_SIGNALS_H

/* SIGINT, SIGTERM and SIGHUP ask once for an orderly end; a second one kills. SIGPIPE is ignored:
 * a write says it too. */
void signals_catch(void);

/* 1 once one has come. */
int signals_caught(void);

#endif
