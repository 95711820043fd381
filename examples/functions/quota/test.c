/* Tests of the function: `make test`. */
#include <tailwater_test.h>

static void each_flow_has_its_own(void) {
    static struct tw_test test;
    char payload[58] = {0};
    TW_CHECK(tw_test_open(&test, &tailwater_function, "{\"bytes\":300}") == 0);
    /* Each packet has 100 bytes, headers included. */
    for (int i = 0; i < 3; i++) TW_CHECK(tw_test_send(&test, 17, 1000, 53, payload, sizeof payload) == TW_FORWARD);
    TW_CHECK(tw_test_send(&test, 17, 1000, 53, payload, sizeof payload) == TW_DROP(0));
    TW_CHECK(tw_test_send(&test, 17, 1001, 53, payload, sizeof payload) == TW_FORWARD);
    tw_test_close(&test);
}

static void refuses(const char *config, const char *field) {
    static struct tw_test test;
    TW_CHECK(tw_test_open(&test, &tailwater_function, config) == 1);
    TW_CHECK(strcmp(test.error.field, field) == 0);
}

int main(void) {
    each_flow_has_its_own();
    refuses("{}", "bytes");
    refuses("{\"bytes\":0}", "bytes");
    refuses("{\"bites\":1}", "bites");
    puts("quota: all tests passed");
    return 0;
}
