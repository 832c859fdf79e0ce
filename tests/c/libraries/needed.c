/* libneeded.so.7, which libneeding.so needs: for libraries_test. */
int needed(void);
__attribute__((visibility("default"))) int needed(void) { return 7; }
