/* Takes an endpoint inside of a VM and writes garbage over its whole slot, again and again, until it
 * is killed: what a member of a domain can do. docs/fabric-region.md says where. */
#include <fcntl.h>
#include <glob.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define CHECK(it)                                              \
    do {                                                       \
        if (!(it)) {                                           \
            printf("failed in line %d: %s\n", __LINE__, #it);  \
            exit(1);                                           \
        }                                                      \
    } while (0)

/* Of the region of the device. */
static volatile uint64_t *map_region(void) {
    glob_t found;
    CHECK(!glob("/sys/bus/pci/devices/*/device", 0, NULL, &found));
    for (size_t n = 0; n < found.gl_pathc; n++) {
        char text[16] = "", path[300];
        FILE *file = fopen(found.gl_pathv[n], "r");
        if (!file || !fgets(text, sizeof text, file) || strncmp(text, "0x1110", 6)) continue;
        snprintf(path, sizeof path, "%.*sresource2", (int)(strlen(found.gl_pathv[n]) - 6),
                 found.gl_pathv[n]);
        int fd = open(path, O_RDWR);
        struct stat shape;
        CHECK(fd >= 0 && !fstat(fd, &shape));
        void *start = mmap(NULL, shape.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(start != MAP_FAILED);
        return start;
    }
    CHECK(!"there is a device");
    return NULL;
}

int main(void) {
    struct fi_info *hints = fi_allocinfo(), *info;
    hints->caps = FI_TAGGED;
    hints->ep_attr->type = FI_EP_RDM;
    hints->fabric_attr->prov_name = strdup("vrio");
    CHECK(!fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_ep *ep;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
    struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED};
    CHECK(!fi_fabric(info->fabric_attr, &fabric, NULL));
    CHECK(!fi_domain(fabric, info, &domain, NULL));
    CHECK(!fi_av_open(domain, &av_attr, &av, NULL) && !fi_cq_open(domain, &cq_attr, &cq, NULL));
    CHECK(!fi_endpoint(domain, info, &ep, NULL));
    CHECK(!fi_ep_bind(ep, &av->fid, 0) && !fi_ep_bind(ep, &cq->fid, FI_SEND | FI_RECV));
    CHECK(!fi_enable(ep));
    unsigned char address[64];
    size_t length = sizeof address;
    CHECK(!fi_getname(&ep->fid, address, &length) && length >= 14);
    unsigned slot = address[12] | address[13] << 8;
    volatile uint64_t *region = map_region();
    /* Version 4: slots begin here, and each is as long as its parts. */
    uint64_t cells = (uint32_t)region[2], buffers = region[2] >> 32, bytes = (uint32_t)region[3];
    CHECK((uint32_t)region[1] == 4);
    uint64_t slot_bytes = 4096 + (8 * cells + 4095) / 4096 * 4096 + 256 * cells + buffers * bytes;
    volatile uint64_t *words = region + ((2 << 20) + 4096 + slot * slot_bytes) / 8;
    printf("begins in slot %u\n", slot);
    fflush(stdout);
    for (uint64_t random = 88172645463325252u;;) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        /* Half of it where the ring is. */
        uint64_t part = random & 1 ? slot_bytes / 8 : 4096;
        words[(random >> 8) % part] = random & 2 ? random : random >> 40;
    }
}
