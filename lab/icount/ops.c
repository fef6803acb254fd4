/* Loops whose instructions are counted: ops KIND COUNT runs COUNT operations of one kind.
 *
 * `cargo xtask icount` runs each kind with two counts under callgrind and divides the difference of
 * the instructions by the difference of the counts, so start-up cancels out. Build with
 * -O2 -fno-builtin, or the compiler removes the pairs.
 *
 * a to f are the calibrated set that published figures refer to; their loops stay as they are.
 *
 *   a  malloc(64) + free               g  remote free: one thread allocates, another frees
 *   b  malloc(16 to 1039) + free       h  realloc growth: 16 bytes to 4 KiB in steps of 48
 *   c  calloc(64) + free               i  calloc(4 KiB) + free
 *   d  1,000 mallocs, 1,000 frees      j  malloc(4 KiB) + free
 *   e  random replacement, 64 bytes    k  malloc(32 KiB) + free
 *   f  random replacement, mixed       l  malloc(256 KiB) + free
 *   m  malloc(64) + free, where neap counts bytes until the next sample (which never comes)
 *   n  malloc_usable_size of a live block of 64 bytes
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <pthread.h>
#include <semaphore.h>
static void *slots[1000];
static unsigned long rs=88172645463325252UL;
static inline unsigned rnd(void){rs^=rs<<13;rs^=rs>>7;rs^=rs<<17;return rs;}

/* g: batches of 1,000 blocks change hands; the threads wait in the kernel, never in a loop, so the
 * count does not depend on how they are scheduled. */
static sem_t filled, drained;

static void *free_remotely(void *argument) {
  for (long rounds = *(long *)argument; rounds > 0; rounds--) {
    sem_wait(&filled);
    for (int j = 0; j < 1000; j++) free(slots[j]);
    sem_post(&drained);
  }
  return NULL;
}

static void remote_free(long n) {
  long rounds = n / 1000;
  pthread_t other;
  sem_init(&filled, 0, 0);
  sem_init(&drained, 0, 0);
  if (pthread_create(&other, NULL, free_remotely, &rounds) != 0) exit(1);
  for (long i = rounds; i > 0; i--) {
    for (int j = 0; j < 1000; j++) slots[j] = malloc(64);
    sem_post(&filled);
    sem_wait(&drained);
  }
  pthread_join(other, NULL);
}

/* m: peers have no such function, and show their usual pair. */
static void count_bytes(void) {
  int (*start)(size_t) = (int (*)(size_t))dlsym(RTLD_DEFAULT, "neap_profile_start");
  if (start != NULL && start((size_t)1 << 40) != 0) exit(1);
}

/* h: one operation is one realloc; every 86th starts a new buffer and frees the old one. */
static void realloc_growth(long n) {
  char *buffer = NULL;
  size_t size = 16;
  for (long i = 0; i < n; i++) {
    buffer = realloc(buffer, size);
    size += 48;
    if (size > 4096) {
      free(buffer);
      buffer = NULL;
      size = 16;
    }
  }
  free(buffer);
}

int main(int c,char**v){
 if(c<3){fprintf(stderr,"usage: ops KIND COUNT\n");return 2;}
 long n=atol(v[2]);
 switch(v[1][0]){
 case 'a': for(long i=0;i<n;i++){free(malloc(64));} break;
 case 'b': for(long i=0;i<n;i++){free(malloc(16+(rnd()&1023)));} break;
 case 'c': for(long i=0;i<n;i++){free(calloc(1,64));} break;
 case 'd': for(long i=0;i<n/1000;i++){for(int j=0;j<1000;j++)slots[j]=malloc(64);for(int j=0;j<1000;j++)free(slots[j]);} break;
 case 'e': for(long i=0;i<n;i++){unsigned k=rnd()%1000; free(slots[k]); slots[k]=malloc(64);} break;
 case 'f': for(long i=0;i<n;i++){unsigned k=rnd()%1000; free(slots[k]); slots[k]=malloc(16+(rnd()&1023));} break;
 case 'g': remote_free(n); break;
 case 'h': realloc_growth(n); break;
 case 'i': for(long i=0;i<n;i++){free(calloc(1,4096));} break;
 case 'j': for(long i=0;i<n;i++){free(malloc(4096));} break;
 case 'k': for(long i=0;i<n;i++){free(malloc(32768));} break;
 case 'l': for(long i=0;i<n;i++){free(malloc(262144));} break;
 case 'm': count_bytes(); for(long i=0;i<n;i++){free(malloc(64));} break;
 case 'n': {void*p=malloc(64);size_t sum=0;for(long i=0;i<n;i++)sum+=malloc_usable_size(p);free(p);if(sum<64*(size_t)n)return 1;} break;
 default: fprintf(stderr,"ops: no kind %s\n",v[1]);return 2;
 }
}
