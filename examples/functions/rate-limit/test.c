/* Tests of the function: `make test`. */
#include <tailwater_test.h>

static void limits_each_flow_for_itself(void) {
    static struct tw_test test;
    TW_CHECK(tw_test_open(&test, &tailwater_function, "{\"packetsPerSecond\":1000,\"burst\":3}") == 0);
    test.now_ns = 5;
    for (int i = 0; i < 3; i++) TW_CHECK(tw_test_send(&test, 17, 1000, 53, "x", 1) == TW_FORWARD);
    TW_CHECK(tw_test_send(&test, 17, 1000, 53, "x", 1) == TW_DROP(0));
    TW_CHECK(tw_test_send(&test, 17, 1001, 53, "x", 1) == TW_FORWARD);
    test.now_ns += 999999;
    TW_CHECK(tw_test_send(&test, 17, 1000, 53, "x", 1) == TW_DROP(0));
    test.now_ns += 1;
    TW_CHECK(tw_test_send(&test, 17, 1000, 53, "x", 1) == TW_FORWARD);
    TW_CHECK(tw_test_send(&test, 17, 1000, 53, "x", 1) == TW_DROP(0));
    /* An hour without packets accumulates one burst at most. */
    test.now_ns += 3600000000000;
    for (int i = 0; i < 3; i++) TW_CHECK(tw_test_send(&test, 17, 1000, 53, "x", 1) == TW_FORWARD);
    TW_CHECK(tw_test_send(&test, 17, 1000, 53, "x", 1) == TW_DROP(0));
    tw_test_close(&test);
    TW_CHECK(test.counters[0] == 2 && test.counters[1] == 1);
}

static void refuses(const char *config, const char *field, const char *message) {
    static struct tw_test test;
    TW_CHECK(tw_test_open(&test, &tailwater_function, config) == 1);
    TW_CHECK(strcmp(test.error.field, field) == 0);
    TW_CHECK(strstr(test.error.message, message));
}

int main(void) {
    limits_each_flow_for_itself();
    refuses("{}", "packetsPerSecond", "a whole number from 1");
    refuses("{\"packetsPerSecond\":0}", "packetsPerSecond", "a whole number from 1");
    refuses("{\"packetsPerSecond\":1,\"burst\":\"many\"}", "burst", "a whole number from 1");
    refuses("{\"packetsPerSecond\":1,\"brust\":2}", "brust", "expected one of the fields");
    puts("rate-limit: all tests passed");
    return 0;
}
