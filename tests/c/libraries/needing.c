/* libneeding.so, a plugin that needs libneeded.so.7: for libraries_test. */
int needed(void);
int needing(void);
__attribute__((visibility("default"))) int needing(void) { return 2 * needed(); }
