// Random calls, most of which name no sample or place that the call is for: what they leave is whole, and nothing else is
// written. Each array ends where its memory ends.
#include <string.h>

#include "check.h"
#include "sections.h"

enum { CLASSES = 4, EACH = 9, MEMBERS = CLASSES * EACH, SAMPLES = MEMBERS + 3, CALLS = 200000 };

static int32_t *numbers(size_t count) {
    int32_t *made = calloc(count, sizeof *made);
    CHECK(made);
    return made;
}

// The last samples are in no section.
static redox_sections made(void) {
    redox_sections sections = {.classes = CLASSES, .members = MEMBERS, .samples = SAMPLES};
    int32_t *class_of = numbers(SAMPLES), *begun = numbers(CLASSES + 1);
    int32_t **borders[] = {&sections.kept,   &sections.next,    &sections.served,
                           &sections.stream, &sections.arrived, &sections.loaded};
    sections.queue = numbers(MEMBERS);
    sections.at = numbers(SAMPLES);
    sections.stock = numbers(CLASSES);
    sections.had = calloc(SAMPLES, 1);
    sections.stays = calloc(SAMPLES, 1);
    CHECK(sections.had && sections.stays);
    for (int32_t sample = 0; sample < SAMPLES; sample++) {
        bool covered = sample < MEMBERS;
        class_of[sample] = covered ? sample / EACH : CLASSES;
        sections.at[sample] = covered ? sample : -1;
        if (covered) {
            sections.queue[sample] = sample;
        }
    }
    for (size_t i = 0; i < sizeof borders / sizeof *borders; i++) {
        *borders[i] = numbers(CLASSES);
        for (int32_t cls = 0; cls < CLASSES; cls++) {
            (*borders[i])[cls] = cls * EACH;
        }
    }
    for (int32_t cls = 0; cls <= CLASSES; cls++) {
        begun[cls] = cls * EACH;
    }
    sections.class_of = class_of;
    sections.begun = begun;
    return sections;
}

static void check_whole(const redox_sections *sections) {
    for (int32_t place = 0; place < MEMBERS; place++) {
        int32_t sample = sections->queue[place];
        CHECK(sample >= 0 && sample < MEMBERS && sections->at[sample] == place);
        CHECK(sections->class_of[sample] == place / EACH);
    }
    for (int32_t cls = 0; cls < CLASSES; cls++) {
        const int32_t borders[] = {sections->begun[cls],  sections->kept[cls],    sections->next[cls],
                                   sections->served[cls], sections->stream[cls],  sections->arrived[cls],
                                   sections->loaded[cls], sections->begun[cls + 1]};
        for (size_t i = 1; i < sizeof borders / sizeof *borders; i++) {
            CHECK(borders[i - 1] <= borders[i]);
        }
        CHECK(sections->stock[cls] == borders[6] - borders[4] + borders[2] - borders[1]);
    }
}

int main(void) {
    redox_sections sections = made();
    uint64_t state = 7;
    size_t taken = 0, kept = 0, gone = 0, loaded = 0;
    for (size_t call = 0; call < CALLS; call++) {
        uint64_t number = next_number(&state);
        int64_t sample = (int64_t)(number % (SAMPLES + 2)) - 1, cls = (int64_t)(number >> 32) % (CLASSES + 2) - 1;
        switch (number >> 20 & 7) {
        case 0:
        case 1:
            taken += redox_sections_take_out(&sections, cls, sample) >= 0;
            break;
        case 2:
            kept += redox_sections_keep(&sections, sample, number >> 24 & 1);
            break;
        case 3:
            gone += redox_sections_let_go(&sections, sample) >= 0;
            break;
        case 4:
        case 5:
            loaded += redox_sections_load(&sections, sample) >= 0;
            break;
        default:
            // As the pool begins a lap.
            if (cls >= 0 && cls < CLASSES && sections.served[cls] == sections.begun[cls + 1]) {
                sections.stream[cls] = sections.arrived[cls] = sections.kept[cls];
                sections.loaded[cls] = sections.next[cls];
                sections.kept[cls] = sections.next[cls] = sections.served[cls] = sections.begun[cls];
            }
        }
        check_whole(&sections);
    }
    CHECK(taken && kept && gone && loaded);
    CHECK(redox_sections_load(&sections, INT64_MAX) < 0 && redox_sections_take_out(&sections, 0, INT64_MIN) < 0);
    int32_t *of[] = {sections.queue, sections.at,     sections.kept,    sections.next,  sections.served,
                     sections.stream, sections.arrived, sections.loaded, sections.stock};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        free(of[i]);
    }
    free((void *)sections.class_of);
    free((void *)sections.begun);
    free(sections.had);
    free(sections.stays);
    return 0;
}
