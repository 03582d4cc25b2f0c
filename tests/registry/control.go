package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"
)

const bodyMax = 1 << 22

// A failure that a test has asked for: what the next `count` requests get, of those whose path begins with `path`.
type failure struct {
	path   string
	count  int
	hang   bool
	status int
	header http.Header
	body   []byte
}

// What tests control, all of it below /test/:
//
//	POST   /test/fail?status=503     the next requests get this status. The request's body is what they get with it; if it
//	                                 has none, what Confluent's registry says then; location=URL adds where to look instead
//	POST   /test/hang                the next requests get no answer before DELETE /test/failures
//	DELETE /test/failures            all is well again; requests that hang are answered now
//	POST   /test/schemas             puts each schema of a list at its very place, under its very id. The list is as GET
//	                                 /schemas answers it, a schema behind those that it refers to
//	DELETE /test/schemas             forgets all schemas
//	GET    /test/requests            how many requests of each kind the registry got, failed or not
//
// Both failures take count=N, without which they last until they are deleted, and path=/schemas/ids/3, how the paths
// begin that fail. The first failure that fits is the one that counts.
type control struct {
	registry *srfake.Registry

	mu       sync.Mutex
	failures []*failure
	healed   chan struct{} // closed when the failures are deleted
	requests map[string]int
}

func newControl(registry *srfake.Registry) *control {
	return &control{registry: registry, healed: make(chan struct{}), requests: map[string]int{}}
}

func (c *control) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /test/fail", c.fail)
	mux.HandleFunc("POST /test/hang", c.hang)
	mux.HandleFunc("DELETE /test/failures", c.heal)
	mux.HandleFunc("POST /test/schemas", c.seed)
	mux.HandleFunc("DELETE /test/schemas", func(http.ResponseWriter, *http.Request) { c.registry.Reset() })
	mux.HandleFunc("GET /test/requests", c.list)
	return mux
}

// Counts the request, and lets it fail if it is to. False says that the registry is to answer.
func (c *control) intercept(w http.ResponseWriter, r *http.Request) bool {
	failure, healed := c.next(r)
	switch {
	case failure == nil:
		return false
	case failure.hang:
		select {
		case <-healed:
			return false
		case <-r.Context().Done():
			return true
		}
	default:
		for name, values := range failure.header {
			w.Header()[name] = values
		}
		w.WriteHeader(failure.status)
		_, _ = w.Write(failure.body)
		return true
	}
}

// The failure of this request, and what is closed when all is well again.
func (c *control) next(r *http.Request) (*failure, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests[r.Method+" "+r.URL.RequestURI()]++
	for _, failure := range c.failures {
		if failure.count > 0 && strings.HasPrefix(r.URL.Path, failure.path) {
			failure.count--
			return failure, c.healed
		}
	}
	return nil, nil
}

func (c *control) fail(w http.ResponseWriter, r *http.Request) {
	status, err := strconv.Atoi(r.URL.Query().Get("status"))
	if err != nil || status < 200 || status > 599 {
		http.Error(w, "status must be a number from 200 to 599", http.StatusBadRequest)
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, bodyMax))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if len(body) == 0 {
		body = fmt.Appendf(nil, `{"error_code":%d,"message":%q}`, status, http.StatusText(status))
	}
	header := http.Header{"Content-Type": {"application/vnd.schemaregistry.v1+json"}}
	if location := r.URL.Query().Get("location"); location != "" {
		header.Set("Location", location)
	}
	c.add(w, r, &failure{status: status, header: header, body: body})
}

func (c *control) hang(w http.ResponseWriter, r *http.Request) {
	c.add(w, r, &failure{hang: true})
}

func (c *control) add(w http.ResponseWriter, r *http.Request, failure *failure) {
	failure.path = r.URL.Query().Get("path")
	failure.count = math.MaxInt
	if count := r.URL.Query().Get("count"); count != "" {
		var err error
		if failure.count, err = strconv.Atoi(count); err != nil {
			http.Error(w, "count must be a number", http.StatusBadRequest)
			return
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = append(c.failures, failure)
}

func (c *control) heal(http.ResponseWriter, *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = nil
	close(c.healed)
	c.healed = make(chan struct{})
}

// Puts schemas at places that the test chooses, so that the ids of recorded frames are right.
func (c *control) seed(w http.ResponseWriter, r *http.Request) {
	var schemas []sr.SubjectSchema
	if err := json.NewDecoder(io.LimitReader(r.Body, bodyMax)).Decode(&schemas); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for _, schema := range schemas {
		if err := c.put(schema); err != nil {
			http.Error(w, fmt.Sprintf("%s, version %d: %v", schema.Subject, schema.Version, err), http.StatusConflict)
			return
		}
	}
}

func (c *control) put(schema sr.SubjectSchema) (err error) {
	// srfake panics where a place is taken, or a reference leads nowhere.
	defer func() {
		if reason := recover(); reason != nil {
			err = c.share(schema, reason)
		}
	}()
	c.registry.SeedSchema(schema.Subject, schema.Version, schema.ID, schema.Schema)
	return nil
}

// Registers a schema that another subject has under the same id, for that cannot be seeded.
func (c *control) share(schema sr.SubjectSchema, reason any) error {
	id, version, err := c.registry.RegisterSchema(schema.Subject, schema.Schema)
	if err == nil && (id != schema.ID || version != schema.Version) {
		err = fmt.Errorf("%v", reason)
	}
	return err
}

func (c *control) list(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(c.requests)
}
