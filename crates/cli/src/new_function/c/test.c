/* Tests of @NAME@: `make test`. */
#include "tailwater_test.h"

int main(void) {
    static struct tw_test test;

    TW_CHECK(tw_test_open(&test, &tailwater_function, "{\"packets\":2}") == 0);
    TW_CHECK(tw_test_send(&test, 17, 1000, 53, "one", 3) == TW_FORWARD);
    TW_CHECK(tw_test_send(&test, 17, 1000, 53, "two", 3) == TW_FORWARD);
    TW_CHECK(tw_test_send(&test, 17, 1000, 53, "three", 5) == TW_DROP(0));
    TW_CHECK(strcmp(test.explanation.text, "packets of the flow: 3, limit 2") == 0);
    TW_CHECK(tw_test_send(&test, 6, 1001, 80, "another flow", 12) == TW_FORWARD);
    tw_test_close(&test);
    TW_CHECK(test.counters[0] == 2);

    TW_CHECK(tw_test_open(&test, &tailwater_function, "{\"packets\":\"many\"}") == 1);
    TW_CHECK(strcmp(test.error.field, "packets") == 0);

    puts("@NAME@: all tests passed");
    return 0;
}
