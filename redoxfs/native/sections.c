#include "sections.h"

static void swap(redox_sections *sections, int32_t place, int32_t other) {
    int32_t *queue = sections->queue, sample = queue[place];
    queue[place] = queue[other];
    queue[other] = sample;
    sections->at[queue[place]] = place;
    sections->at[sample] = other;
}

// The place of a sample and its class, or -1.
static int32_t place_of(const redox_sections *sections, int64_t sample, int32_t *cls) {
    if (sample < 0 || (uint64_t)sample >= sections->samples) {
        return -1;
    }
    *cls = sections->class_of[sample];
    return sections->at[sample];
}

int64_t redox_sections_take_out(redox_sections *sections, int64_t cls, int64_t at) {
    if (cls < 0 || (uint64_t)cls >= sections->classes || at < sections->served[cls] || at >= sections->loaded[cls]) {
        return REDOX_NO_RESIDENT;
    }
    int32_t place = (int32_t)at, stream = sections->stream[cls], sample = sections->queue[place];
    if (place >= stream) {
        swap(sections, place, stream);
        sections->arrived[cls] += sections->arrived[cls] == stream;
        sections->stock[cls]--;
        sections->stream[cls]++;
        place = stream;
    }
    swap(sections, place, sections->served[cls]++);
    sections->had[sample] = REDOX_HAD_TURN;
    return sample;
}

bool redox_sections_keep(redox_sections *sections, int64_t sample, bool retained) {
    int32_t cls, place = place_of(sections, sample, &cls);
    if (place < 0 || place < sections->next[cls] || place >= sections->served[cls]) {
        return false;
    }
    int32_t border = sections->next[cls]++;
    swap(sections, place, border);
    if (retained) {
        swap(sections, border, sections->kept[cls]++);
    } else {
        sections->stock[cls]++;
    }
    sections->stays[sample] = 0;
    return true;
}

int redox_sections_let_go(redox_sections *sections, int64_t sample) {
    int32_t cls, place = place_of(sections, sample, &cls);
    if (place < 0 || place < sections->begun[cls] || place >= sections->next[cls]) {
        return REDOX_NO_SUCH_SAMPLE;
    }
    bool retained = place < sections->kept[cls];
    if (retained) {
        swap(sections, place, --sections->kept[cls]);
        place = sections->kept[cls];
    } else {
        sections->stock[cls]--;
    }
    swap(sections, place, --sections->next[cls]);
    return retained;
}

int redox_sections_load(redox_sections *sections, int64_t sample) {
    int32_t cls, place = place_of(sections, sample, &cls);
    if (place < 0 || place < sections->next[cls]) {
        return REDOX_NO_SUCH_SAMPLE;
    }
    bool is_fresh = place >= sections->loaded[cls];
    if (!is_fresh && place >= sections->served[cls]) {
        return REDOX_NO_SUCH_SAMPLE;
    }
    swap(sections, place, is_fresh ? sections->loaded[cls]++ : sections->next[cls]++);
    sections->stock[cls]++;
    return is_fresh;
}
